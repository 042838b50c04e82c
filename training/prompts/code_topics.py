"""List the topics of the templates about code."""

LANGUAGES = ("Python", "JavaScript", "Python", "Java", "C", "C++", "Go", "Rust", "TypeScript", "PHP", "Ruby", "Python")
CODE_TASKS = tuple(
    line.strip()
    for line in """
    sorts a list of dictionaries by a key
    finds the longest word in a sentence
    counts how often each letter occurs
    removes all vowels from a string
    checks whether two strings are anagrams
    computes the factorial of a number
    finds all prime numbers below a limit
    converts Roman numerals to integers
    converts an integer to Roman numerals
    flattens a nested list
    rotates a list by k places
    finds the intersection of two lists
    computes the dot product of two vectors
    multiplies two matrices
    transposes a matrix
    searches a sorted list with binary search
    implements quicksort
    implements merge sort
    implements bubble sort
    reverses a linked list
    inserts into a binary search tree
    walks a tree in order
    finds the shortest path in a grid
    checks whether brackets are balanced
    evaluates a simple arithmetic expression
    parses a date from a string
    formats a number with thousands separators
    generates a random password
    hashes a file with SHA-256
    reads a JSON file and prints its keys
    writes a list of rows to a CSV file
    downloads a web page and prints its title
    sends an HTTP request with a timeout
    logs messages to a file with a timestamp
    retries a function three times when it fails
    caches the results of a slow function
    splits a list into chunks
    groups words by their first letter
    computes a moving average
    finds the second largest number in a list
    validates an email address
    converts kilometres to miles
    converts a decimal number to binary
    counts the days between two dates
    prints a multiplication table
    draws a triangle of stars
    simulates rolling two dice
    plays rock, paper, scissors
    guesses a number between 1 and 100
    keeps a to-do list in a file
    capitalises every word of a title
    replaces every digit in a text with a star
    finds duplicates in an array
    merges two dictionaries
    sums the digits of a number
    checks whether a year is a leap year
    computes compound interest
    finds the median of a list of numbers
    encrypts a text with the Caesar cipher
    compresses a string by counting repeated letters
    reads numbers from standard input and prints their average
    starts a small web server
    connects to a SQLite database and lists its tables
    measures the time a loop takes
    runs two tasks at the same time
    reads command line arguments
    copies a folder with all its files
    finds the common prefix of several strings
    prints the calendar of a month
    shuffles a deck of cards
    implements a queue with two stacks
    implements a least recently used cache
    converts snake case to camel case
    checks whether a number is a power of two
    finds the maximum subarray sum
    solves the towers of Hanoi
    counts the islands in a grid
    checks whether a number is an Armstrong number
    prints the prime factors of a number
    finds the least common multiple of two numbers
    checks whether a string is a valid URL
    counts the vowels in a sentence
    finds the missing number in a list
    splits a list into chunks of equal size
    moves all zeros to the end of a list
    groups words by their first letter
    removes punctuation from a text
    zips two lists into a dictionary
    sorts a dictionary by its values
    finds the most common element of a list
    checks whether two lists are equal
    prints all even numbers in a range
    prints Pascal's triangle
    computes the area of a polygon
    computes the distance between two points
    finds the roots of a quadratic equation
    approximates pi with random numbers
    searches a linked list
    detects a cycle in a linked list
    implements depth-first search
    implements breadth-first search
    implements Dijkstra's algorithm
    implements a hash table
    implements a binary heap
    implements a trie
    implements insertion sort
    implements a priority queue
    adds two numbers without the plus sign
    swaps two variables
    reads an integer from the user and checks it
    writes a greeting to a file
    appends a line to a file
    prints the current date and time
    lists all files of a folder
    parses command line flags
    loads settings from an environment variable
    serves a REST endpoint
    calls a REST API and prints the answer
    parses an XML file
    reads a YAML file
    scrapes all links of a web page
    sends an email
    resizes an image
    plots a line chart
    computes a correlation
    fits a straight line to points
    trains a simple classifier
    tokenises a sentence
    converts a string to a date
    rounds a number to two decimals
    formats a table of text
    draws a circle on a canvas
    moves a ball across the screen
    implements tic-tac-toe
    implements a simple calculator
    implements a stopwatch
    implements a phone book
    implements a shopping cart
    implements a guessing game for words
    inverts a binary tree
    computes the height of a tree
    merges overlapping intervals
    finds two numbers that add up to a target
    finds the longest substring without repeated characters
    counts the paths in a grid
    computes the edit distance of two words
    locks a shared counter between threads
    caches the results of a function
    handles a division by zero
    validates a password
    converts bytes to megabytes
    converts minutes to hours
    converts text to Morse code
    generates all permutations of a string
    generates all subsets of a set
    computes the nth Fibonacci number with memoisation
    """.strip().splitlines()
)
CONCEPTS = (
    "a list",
    "a tuple",
    "a dictionary",
    "a set",
    "recursion",
    "iteration",
    "a class",
    "an object",
    "an interface",
    "a thread",
    "a process",
    "a queue",
    "a stack",
    "a pointer",
    "a reference",
    "an exception",
    "a generator",
    "a decorator",
    "a closure",
    "inheritance",
    "composition",
    "a compiler",
    "an interpreter",
    "a GET request",
    "a POST request",
)
ATTRIBUTES = ("year", "country", "colour", "owner", "category", "price range", "city", "status", "month", "size")
SHELL = (
    "finds all files larger than 100 MB",
    "counts the lines of every Python file in a folder",
    "shows which process uses port 8080",
    "deletes empty directories",
    "replaces a word in many files",
    "packs a folder into an archive",
    "lists the ten largest files",
    "watches a log file for errors",
    "downloads a file and checks its hash",
    "sorts a file by its second column",
)
PATTERNS = (
    "email addresses",
    "phone numbers",
    "IP addresses",
    "hexadecimal colours",
    "postal codes",
    "times like 23:59",
    "URLs",
    "words that begin with a capital letter",
    "numbers with decimals",
    "quoted strings",
    "HTML tags",
    "file names that end in .csv",
)
SNIPPETS = (
    "def f(x):\n    return x if x < 2 else f(x - 1) + f(x - 2)",
    "for i in range(10):\n    if i % 2:\n        continue\n    print(i)",
    "total = 0\nfor price in prices:\n    total =+ price\nprint(total)",
    "def mean(xs):\n    return sum(xs) / len(xs)",
    "const double = xs => xs.map(x => x * 2);",
    "while (left <= right) {\n    int mid = (left + right) / 2;\n    if (a[mid] == key) return mid;\n"
    "    if (a[mid] < key) left = mid;\n    else right = mid - 1;\n}",
    "with open('data.txt') as file:\n    words = file.read().split()\nprint(len(set(words)))",
    "SELECT name, COUNT(*) FROM orders GROUP BY name HAVING COUNT(*) > 3;",
    "def add(item, items=[]):\n    items.append(item)\n    return items",
    "x = [n * n for n in range(20) if n % 3 == 0]",
    "try:\n    value = int(text)\nexcept ValueError:\n    value = None",
    "class Node:\n    def __init__(self, value):\n        self.value = value\n        self.next = None",
    "function greet(name) {\n  return 'Hello, ' + name + '!';\n}",
    "import re\nprint(re.findall(r'\\d+', 'a1b22c333'))",
    "int max(int a, int b) {\n    return a > b ? a : b;\n}",
    "def is_even(n):\n    if n % 2 == 0:\n        return True\n    else:\n        return False",
    "counts = {}\nfor word in words:\n    counts[word] = counts.get(word, 0) + 1",
    "a, b = 0, 1\nwhile a < 100:\n    print(a)\n    a, b = b, a + b",
)  # fmt: skip
