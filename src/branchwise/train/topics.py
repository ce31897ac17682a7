"""Words that openers are built from. Nothing but lists: our own, short, and broad rather than deep."""

from __future__ import annotations

from typing import Final


def _listed(text: str) -> tuple[str, ...]:
    """What stands between the bars, lines joined."""
    return tuple(word.strip() for line in text.strip().splitlines() for word in line.split("|"))


SUBJECTS: Final = _listed(
    """
    photosynthesis | plate tectonics | black holes | vaccines | the water cycle | electric cars
    the Roman Empire | jazz | inflation | interest rates | the French Revolution | quantum computers
    honey bees | coral reefs | volcanoes | the periodic table | democracy | the human heart | sleep | memory
    natural selection | the Silk Road | machine learning | solar panels | nuclear power | batteries
    the moon landing | glaciers | migratory birds | the printing press | supply and demand | insurance
    mortgages | compound interest | public transport | urban gardening | recycling | antibiotics
    the immune system | DNA | stem cells | tides | earthquakes | hurricanes | rainforests | deserts
    penguins | octopuses | whales | wolves | dinosaurs | fossils | the Renaissance | Buddhism | stoicism
    ethics | utilitarianism | logic puzzles | chess openings | cryptography | the internet | search engines
    operating systems | compilers | databases | version control | recursion | graph theory | prime numbers
    probability | statistics | calculus | geometry | fractals | music theory | impressionism | Shakespeare
    science fiction | detective novels | haiku | film noir | photography | typography | sourdough bread
    fermentation | coffee | tea ceremonies | olive oil | vegetarian diets | marathon training | yoga
    cycling | rowing | swimming | mountaineering | first aid | childhood development | language learning
    public speaking | negotiation | time management | job interviews | remote work | leadership
    small businesses | marketing | taxes | wills | renting a flat | moving abroad | etiquette | gravity
    light | sound waves | magnetism | semiconductors | 3D printing | robots | drones | satellites
    telescopes | the Big Bang | dark matter | comets | Mars | the ozone layer | acid rain | soil erosion
    wind turbines | hydropower | geothermal heat | carbon taxes | the United Nations | the European Union
    elections | human rights | trade unions | the gold standard | central banks | stocks | bonds
    the Great Depression | the Cold War | the Ottoman Empire | ancient Egypt | the Inca | the Vikings
    Genghis Khan | Marie Curie | Isaac Newton | Ada Lovelace | Leonardo da Vinci | Mozart | Beethoven
    Frida Kahlo | Gandhi | Nelson Mandela | Cleopatra | diabetes | high blood pressure | migraines
    allergies | vitamins | protein | sugar | the liver | kidneys | muscles | bones | eyes | hearing | dogs
    cats | horses | parrots | goldfish | house plants | roses | tomatoes | mushrooms | oak trees | seaweed
    salt | gold | steel | concrete | bridges | skyscrapers | canals | railways | airports | submarines
    rockets | bicycles | clocks | maps | calendars | money | passports | board games | football | tennis
    cricket | the Olympic Games | kites | origami | pottery | knitting | woodworking | watercolours
    """
)

PLACES: Final = _listed(
    """
    Kyoto | Lisbon | Nairobi | a small fishing village | the Scottish Highlands | Buenos Aires | New Orleans
    a space station | Istanbul | Reykjavik | the Sahara | Mumbai | a mountain hut | Paris | Vancouver
    Hanoi | Cape Town | an island without electricity | Prague | Mexico City | the Amazon | Sydney
    a lighthouse | Vienna | Seoul | Chicago | Marrakesh | a university campus | Rome | Oslo | Cairo | a farm
    San Francisco | Athens | a busy harbour | London | Singapore | Havana | a desert town | Amsterdam | Lima
    Tokyo
    """
)

PEOPLE: Final = _listed(
    """
    a nurse | a beekeeper | a retired teacher | a software engineer | a ten-year-old | a lawyer | a farmer
    a chef | a bus driver | an architect | a museum guide | a librarian | a carpenter | a student of biology
    a journalist | a pilot | a shop owner | a football coach | a violinist | a tax adviser | a mayor
    a marine biologist | a game designer | a grandmother | a detective | a blacksmith | an astronaut
    a translator | a tour guide | a product manager | a data analyst | a firefighter | a poet
    a chemistry teacher | a night watchman | a clockmaker | a new neighbour | an electrician
    a startup founder | a volunteer
    """
)

NAMES: Final = _listed(
    """
    Amara | Bruno | Chiara | Dmitri | Elena | Farid | Greta | Hassan | Ingrid | Jamal | Keiko | Luca | Mina
    Nadia | Oscar | Priya | Quentin | Rosa | Sven | Tariq | Uma | Viktor | Wanda | Xavier | Yara | Zoe | Tom
    Anna | Ben | Lily | Noah | Ruth | Peter | Sara | Daniel | Julia | Mark | Emma
    """
)

THINGS: Final = _listed(
    """
    apples | pencils | tickets | bottles of juice | books | marbles | eggs | stamps | bags of rice
    notebooks | candles | bricks | chairs | photos | tiles | flowers | loaves of bread | T-shirts | cookies
    jars of honey | trees | sandwiches | postcards | batteries | toys
    """
)

PROGRAMMING_LANGUAGES: Final = _listed(
    "Python | Python | Python | JavaScript | Java | C | C++ | Rust | Go | SQL | Bash"
)

CODE_TASKS: Final = _listed(
    """
    reverses a linked list | counts the words in a text file | checks whether a string is a palindrome
    merges sorted lists | finds the longest common prefix of a list of strings
    parses a CSV file and sums one column | sorts by two keys | computes Fibonacci numbers with memoisation
    finds duplicates in a list | validates an email address | flattens a nested list
    implements a stack with a minimum | rotates a matrix by 90 degrees | converts Roman numerals
    finds the shortest path in a grid | retries a network request with backoff
    caches results for a limited time | groups anagrams | converts temperatures
    removes comments from source code | counts islands in a grid | finds all prime numbers up to n
    computes a moving average | serialises a binary tree | implements binary search | matches brackets
    finds the k largest numbers | splits a bill | reads a configuration file | renames files in a folder
    prints a calendar month | simulates dice rolls | draws a histogram
    finds the median of two sorted arrays | compresses a string by run lengths | generates all permutations
    adds big numbers
    """
)

LANGUAGES: Final = _listed(
    "German | French | Spanish | Italian | Portuguese | Dutch | Swedish | Polish | Latin | Japanese"
)

TEXT_FORMS: Final = _listed(
    """
    an email | a short story | a poem | a product description | a news article | a diary entry | a speech
    a blog post | a letter | a dialogue | a recipe | a travel guide entry | a press release | a song
    a fable | a cover letter | a book review | a limerick | an advertisement | a eulogy | a short play
    an essay | a fairy tale | instructions | a social media post | a formal complaint | meeting notes
    a toast | a riddle | a summary | a FAQ page | a job posting | a ghost story | a newsletter
    a lesson plan
    """
)

TONES: Final = (*[""] * 3, "funny ", "formal ", "sad ", "cheerful ", "short ", "detailed ", "persuasive ", "simple ")
