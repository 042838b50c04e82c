"""List the topics of the templates of `training.prompts.draw`."""


def _listed(text: str, between: str) -> tuple[str, ...]:
    """Split a text, and put each part on one line."""
    return tuple(" ".join(part.split()) for part in text.split(between))


NOUNS = _listed(
    """lighthouse,dragon,robot,librarian,river,clock,bridge,violin,fox,garden,train,baker,astronaut,mirror,island,
    wolf,teapot,painter,storm,castle,bicycle,owl,sailor,letter,mountain,shadow,king,doctor,whale,map,candle,
    detective,forest,ship,piano,queen,desert,camera,student,turtle,market,soldier,umbrella,book,kite,monk,elephant,
    astronomer,beekeeper,bottle,bear,cactus,cellar,comet,compass rose,crow,cook,dancer,door,donkey,dream,
    eagle,farmer,feather,ferry,firefighter,flute,fountain,ghost,giant,glove,grandmother,hat,hedgehog,horse,
    inventor,jar,judge,knight,ladder,lake,lamp,lizard,magician,mailman,mermaid,mouse,nurse,ocean,orchard,
    parrot,penguin,pilot,pirate,poet,postcard,potter,prince,princess,pumpkin,rabbit,ring,rooster,satellite,scarecrow,
    scientist,seed,shepherd,shoemaker,snail,snowman,spaceship,spoon,squirrel,stone,street,suitcase,swan,swing,
    tailor,teacher,telescope,thief,tiger,toymaker,trumpet,village,wall,watch,well,wind,witch,wizard,woman,
    engine,harbour,window,spider,carpenter,moon,shopping cart,bank account,parking lot,playlist,vending machine,
    calendar,elevator,rocket,thermostat,recipe,library,zoo,wallet,chess board,inventory,hospital,school,tent,oak,
    apple,actor,avalanche,engineer,otter,orchestra""",
    ",",
)
THINGS = _listed(
    """
    books, apples, bees, volcanoes, bicycles, mirrors, batteries, candles, spiders, dinosaurs, rockets, violins,
    glaciers, mushrooms, coins, shoes, clouds, windmills, diamonds, whales, bridges, stamps, tomatoes, clocks, maps,
    magnets, robots, paintings, pearls, computers, satellites, newspapers, cheeses, kites, trains, cats, wolves,
    pencils, marbles, lanterns, vitamins, vaccines, solar panels, electric cars, coral reefs, rainforests, castles,
    airplanes, ants, bananas, beans, bears, bells, boats, bottles, boxes, bricks, butterflies, cakes, cameras, carpets,
    carrots, chairs, chickens, chocolates, cows, crabs, crystals, dolphins, doors, drums, eggs, elephants, engines,
    feathers, ferns, fish, flowers, forks, frogs, games, gardens, grapes, hats, hedges, horses, icebergs, insects,
    jellyfish, keys, lakes, lamps, lemons, letters, lions, masks, medicines, mice, mountains, nuts, olives, onions,
    oranges, owls, oysters, parks, penguins, phones, pigs, planets, plums, potatoes, rabbits, rings, ropes, sandwiches,
    seeds, sharks, sheep, ships, snakes, soaps, socks, songs, spices, squirrels, stars, stones, swords, tables, tents,
    tigers, toys, tractors, trees, turtles, umbrellas, watches, wells, wines, zebras,
    board games, roses, tea leaves""",
    ",",
)
SCIENCE = _listed(
    """photosynthesis; gravity; the water cycle; electricity; the immune system; plate tectonics;
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
    gravity waves; atoms; molecules; chemical bonds; acids and bases; oxygen; carbon; hydrogen; helium; gold; silver;
    iron; aluminium; diamonds; coal; natural gas; petroleum; solar power; batteries; semiconductors; transistors;
    computers; software; algorithms; programming languages; the World Wide Web; email; social media; smartphones;
    television; the telephone; the telegraph; the steam engine; the combustion engine; aviation; the railway; the
    airship; the bicycle trade; the microscope; the telescope; X-rays; the thermometer; the barometer; the clock;
    the calendar; mathematics; calculus; probability; number theory; logic; game theory; economics; money; banking;
    credit; unemployment; globalisation; the European Union; the Middle Ages; the Ottoman Empire; the Mongol Empire;
    the Aztecs; the Inca Empire; ancient Greece; Mesopotamia; the Vikings; the Crusades; the Black Death; the
    Enlightenment; the American Civil War; the First World War; the Second World War; colonialism; slavery; the
    suffrage movement; the civil rights movement; apartheid; communism; capitalism; socialism; feudalism; monarchy;
    parliaments; elections; courts; juries; Buddhism; Islam; Christianity; Hinduism; Judaism; mythology; folklore;
    the novel; Shakespeare; opera; ballet; the symphony; folk music; hip hop; rock music; painting; sculpture;
    impressionism; cubism; the pyramids; the Great Wall of China; the Eiffel Tower; the Colosseum; cathedrals;
    bridges; skyscrapers; canals; aqueducts; irrigation; agriculture; cattle; the potato; the tomato; tea; chocolate;
    wine; beer; cheese; spices; cotton; silk; wool; the sewing machine; fashion; bacteria; viruses; fungi; algae;
    mosses; ferns; trees; pollination; seeds; roots; insects; ants; spiders; fish; sharks; whales; amphibians;
    reptiles; dinosaurs; birds; bats; mammals; primates; the human brain; the lungs; the kidneys; the stomach; the
    skin; bones; muscles; the eye; the ear; blood; hormones; enzymes; vitamins; iron in food; cholesterol; allergies;
    asthma; influenza; malaria; cancer; surgery; anaesthesia; psychology; learning; language; intelligence; dreams;
    emotions; stress; friendship; education; universities; libraries; museums; newspapers; advertising; tourism;
    volcanoes; glaciers; rivers and deltas; lakes; waves; the monsoon; thunderstorms; tornadoes; clouds; fog; frost;
    the seasons; the equator; the North Pole; the atmosphere; the Moon; Mars; Venus; Jupiter; Saturn; comets;
    asteroids; galaxies; the Milky Way; the Big Bang; dark matter; stars; supernovas; space travel; robots; drones;
    virtual reality; cloud computing; computer viruses; passwords; open source; version control; data privacy;
    paper; plastic; concrete; rubber; salt; sugar; honey; rice; wheat; the moon landing; tides; rainbows; snow;
    hurricanes; deserts; rivers; the Amazon; Antarctica""",
    ";",
)
ACTIVITIES = _listed(
    """learning to swim; changing careers; moving to another country; cooking for a family;
    saving money; writing a novel; learning the guitar; studying for an exam; growing vegetables; running a marathon;
    quitting sugar; meditating; starting a small business; adopting a dog; giving a presentation; planning a wedding;
    repairing a bicycle; painting a room; losing weight; making new friends; a difficult conversation; hiking;
    camping with children; baking bread; working from home; asking for a raise; volunteering; using less plastic;
    learning Spanish; speaking in public; getting up early; reading more books; reducing screen time; a first date;
    buying a used car; renting a flat; a long flight; keeping a diary; knitting; chess; playing the piano; yoga;
    organising a party; cleaning the kitchen; training a puppy; taking photographs; a science project; homework;
    learning to cook; learning to type; learning French; learning Japanese; learning to draw; learning to dance;
    learning to ski; learning to code; learning to sew; learning to surf; buying a house; buying a laptop; choosing a
    university; choosing a career; applying for a job; writing a cover letter; quitting a job; starting a new school;
    moving in together; making a budget; paying off debts; investing; planning a vacation; planning a garden;
    planning a birthday party; packing for college; organising a wardrobe; cleaning the house; washing windows;
    ironing shirts; doing the laundry; mowing the lawn; pruning roses; keeping bees; keeping chickens; keeping fish;
    walking the dog; caring for an old cat; raising twins; homeschooling; helping with homework; reading to children;
    telling stories; writing poetry; writing a blog; writing a thank-you note; writing a resume; editing a film;
    recording a podcast; playing the drums; playing the violin; singing; acting; juggling; magic tricks; origami;
    pottery; woodworking; carpentry; painting with watercolours; photography at night; drawing portraits; swimming;
    rowing; sailing; cycling to work; climbing; weight lifting; stretching; tennis; basketball; football; golf;
    running every morning; eating less meat; eating more vegetables; drinking more water; baking cakes; making soup;
    making pizza; making jam; grilling; brewing coffee; hosting a dinner; being a good host; being on time; being
    patient; saying no; saying sorry; giving feedback; receiving criticism; asking for help; managing time; managing
    stress; managing a team; leading a meeting; working at night; working with a difficult colleague; dealing with
    a noisy flat; dealing with grief; dealing with anger; overcoming shyness; overcoming fear of flying; overcoming
    procrastination; sleeping in a tent; getting over a cold; caring for a parent; visiting relatives; a class
    reunion; a road trip; a city break; a blind date; a broken phone; a slow computer; a lost passport; a power cut;
    negotiating a contract; learning to drive; fasting; a job in sales; teaching mathematics; a family reunion;
    building a website; fixing a leaking tap; birdwatching; singing in a choir""",
    ";",
)
PLACES = _listed(
    """
    Paris, Kyoto, a fishing village, the Sahara, New York, a mountain hut, Iceland, Cairo,
    a space station, Venice, an old factory, Brazil, a night train, Edinburgh, a busy market, Vietnam, a lighthouse,
    Sydney, an empty school,
    Mexico City, a monastery, Norway, a jungle, Istanbul, a harbour in winter, Kenya, a small library, Berlin,
    Tokyo, Lisbon, Vienna, Prague, Budapest, Athens, Madrid, Barcelona, Dublin, Amsterdam, Copenhagen, Stockholm,
    Helsinki, Warsaw, Moscow, Beijing, Shanghai, Seoul, Bangkok, Singapore, Delhi, Dubai, Jerusalem, Nairobi, Lagos,
    Cape Town, Morocco, Egypt, Ethiopia, Madagascar, India, China, Japan, Thailand, Indonesia, Australia, New Zealand,
    Argentina, Chile, Colombia, Cuba, Texas, California, Alaska, Chicago, Boston, San Francisco, Toronto, Greenland,
    Scotland, Ireland, Wales, Portugal, Spain, Italy, Greece, Turkey, Switzerland, Austria, Germany, Poland, Finland,
    an old theatre, an abandoned house, a crowded train station, a quiet forest, a wheat field, a small bakery, a
    bookshop, a hotel by the road, an airport, a football stadium, a swimming pool, a school yard, a cemetery, an attic,
    a cellar, a greenhouse, a mill by the river, a bridge in fog, an island, a swamp, a cave, a waterfall, a volcano,
    a frozen lake, a palace, a circus tent, a workshop, a laboratory, a deployment at noon, a kitchen garden, a park,
    a desert town, Peru, the Alps, a hospital at night, Mumbai, a vineyard, Canada, a ruined castle, Rome, Hawaii,
    a farm in spring, London, the bottom of the sea""",
    ",",
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
RELATIVES = (
    "sister",
    "brother",
    "friend",
    "boss",
    "mother",
    "father",
    "neighbour",
    "colleague",
    "daughter",
    "son",
    "teacher",
    "roommate",
)
PERSON_KINDS = (
    "student",
    "retired teacher",
    "nurse",
    "teenager",
    "new parent",
    "gardener",
    "musician",
    "programmer",
    "farmer",
    "photographer",
)
FOODS = (
    "potatoes, onions and cheese",
    "chicken and lemon",
    "lentils and carrots",
    "pasta and tomatoes",
    "tofu, broccoli and rice",
    "bread and apples",
    "beans, corn and peppers",
    "salmon and dill",
    "oats and bananas",
    "mushrooms and cream",
)
MATHWORDS = (
    "fraction",
    "prime number",
    "derivative",
    "logarithm",
    "matrix",
    "standard deviation",
    "square root",
    "percentage",
    "ratio",
    "polynomial",
    "vector",
    "hypotenuse",
    "linear equation",
    "probability",
    "geometric series",
    "factorial",
    "median",
    "parabola",
)
