"""What the templates of `training.prompts` speak about."""

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
    generates all permutations of a string
    generates all subsets of a set
    computes the nth Fibonacci number with memoisation
    """.strip().splitlines()
)
NOUNS = tuple(
    """lighthouse,dragon,robot,librarian,river,clock,bridge,violin,fox,garden,train,baker,astronaut,mirror,island,
    wolf,teapot,painter,storm,castle,bicycle,owl,sailor,letter,mountain,shadow,king,doctor,whale,map,candle,
    detective,forest,ship,piano,queen,desert,camera,student,turtle,market,soldier,umbrella,book,kite,monk,elephant,
    engine,harbour,window,spider,carpenter,moon,shopping cart,bank account,parking lot,playlist,vending machine,
    calendar,elevator,rocket,thermostat,recipe,library,zoo,wallet,chess board,inventory,hospital,school,tent,oak,
    apple,actor,avalanche,engineer,otter,orchestra""".replace("\n", "").split(",")
)
NOUNS = tuple(noun.strip() for noun in NOUNS)
THINGS = tuple(
    thing.strip()
    for thing in """
    books, apples, bees, volcanoes, bicycles, mirrors, batteries, candles, spiders, dinosaurs, rockets, violins,
    glaciers, mushrooms, coins, shoes, clouds, windmills, diamonds, whales, bridges, stamps, tomatoes, clocks, maps,
    magnets, robots, paintings, pearls, computers, satellites, newspapers, cheeses, kites, trains, cats, wolves,
    pencils, marbles, lanterns, vitamins, vaccines, solar panels, electric cars, coral reefs, rainforests, castles,
    board games, roses, tea leaves""".replace("\n", " ").split(",")
)
SCIENCE = tuple(
    topic.strip()
    for topic in """photosynthesis; gravity; the water cycle; electricity; the immune system; plate tectonics;
    the French Revolution; the Roman Empire; democracy; inflation; supply and demand; evolution; the periodic table;
    climate change; machine learning; the internet; DNA; black holes; the solar system; the Renaissance; jazz;
    the printing press; the human heart; antibiotics; nuclear energy; wind power; blood pressure; sleep; memory;
    the industrial revolution; world trade; the stock market; ocean currents; earthquakes; the ozone layer; sound;
    light; magnetism; cell division; digestion; the nervous system; fermentation; the Cold War; the Silk Road;
    ancient Egypt; the United Nations; human rights; philosophy; ethics; grammar; poetry; the theatre; film;
    photography; architecture; bread; coffee; chess; football; the Olympic Games; cryptography; databases;
    operating systems; the scientific method; statistics; geometry; algebra; the speed of light; relativity;
    quantum mechanics; superconductors; the carbon cycle; biodiversity; deforestation; recycling; public transport;
    urban planning; vaccination; mental health; nutrition; protein; calcium; diabetes; migration; the constitution;
    copyright; insurance; a mortgage; compound interest; taxes; marketing; leadership; team work; remote work;
    artificial intelligence; search engines; blockchain; 3D printing; GPS; radio; radar; lasers; steel; glass;
    paper; plastic; concrete; rubber; salt; sugar; honey; rice; wheat; the moon landing; tides; rainbows; snow;
    hurricanes; deserts; rivers; the Amazon; Antarctica""".replace("\n", " ").split(";")
)
ACTIVITIES = tuple(
    activity.strip()
    for activity in """learning to swim; changing careers; moving to another country; cooking for a family;
    saving money; writing a novel; learning the guitar; studying for an exam; growing vegetables; running a marathon;
    quitting sugar; meditating; starting a small business; adopting a dog; giving a presentation; planning a wedding;
    repairing a bicycle; painting a room; losing weight; making new friends; a difficult conversation; hiking;
    camping with children; baking bread; working from home; asking for a raise; volunteering; using less plastic;
    learning Spanish; speaking in public; getting up early; reading more books; reducing screen time; a first date;
    buying a used car; renting a flat; a long flight; keeping a diary; knitting; chess; playing the piano; yoga;
    organising a party; cleaning the kitchen; training a puppy; taking photographs; a science project; homework;
    negotiating a contract; learning to drive; fasting; a job in sales; teaching mathematics; a family reunion;
    building a website; fixing a leaking tap; birdwatching; singing in a choir""".replace("\n", " ").split(";")
)
PLACES = tuple(
    place.strip()
    for place in """
    Paris, Kyoto, a fishing village, the Sahara, New York, a mountain hut, Iceland, Cairo,
    a space station, Venice, an old factory, Brazil, a night train, Edinburgh, a busy market, Vietnam, a lighthouse,
    Sydney, an empty school,
    Mexico City, a monastery, Norway, a jungle, Istanbul, a harbour in winter, Kenya, a small library, Berlin,
    a desert town, Peru, the Alps, a hospital at night, Mumbai, a vineyard, Canada, a ruined castle, Rome, Hawaii,
    a farm in spring, London, the bottom of the sea""".replace("\n", " ").split(",")
)
PEOPLE = (
    "Anna",
    "Tom",
    "Maria",
    "Ahmed",
    "Lucy",
    "Ben",
    "Sofia",
    "Kenji",
    "Olga",
    "Sam",
    "Priya",
    "David",
    "Mei",
    "Paul",
)
FEELINGS = (
    "tired", "excited", "worried", "lonely", "proud", "bored", "angry", "happy", "confused", "hopeful", "stressed",
    "curious", "jealous", "calm",
)  # fmt: skip
STYLES = (
    "haiku", "limerick", "short essay", "song", "funny story", "formal letter", "newspaper article", "fairy tale",
    "monologue", "travel report", "sonnet", "press release", "mystery story", "science fiction story", "toast",
)  # fmt: skip
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
