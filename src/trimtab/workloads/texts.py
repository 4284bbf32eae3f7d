"""The fixed words of the made workloads: system prompts, questions and reference answers."""

from typing import Final

CODING_SYSTEM: Final = (
    "You are a coding assistant in an editor. Asked for a change, answer with the whole function"
    " after the change, in one code block, and leave everything else in it as it was. Asked a"
    " question, answer in one or two plain sentences, in your own words, without code."
)

CODING_TOOLS: Final = (
    "\nTools: read_file(path, first_line, last_line), search(pattern), run_tests(name)."
)

REPOSITORY_READ: Final = "I have read it."

QUESTIONS: Final[tuple[tuple[str, str], ...]] = (
    (
        "Who is likely to call this, and how often?",
        "Mostly other helpers of the same file, a few times per request; outside code "
        "seldom needs it directly.",
    ),
    (
        "What would you test first here?",
        "Start with empty input, then a single element, and after that a case in which "
        "the caller passes the wrong type.",
    ),
    (
        "Could two threads share this safely?",
        "Only when a lock is held around the call, because reading and writing happen in "
        "separate steps.",
    ),
    (
        "How would you explain it to a new colleague?",
        "Think of a clerk who takes one card from the box, looks at it, and hands back "
        "whatever belongs to it.",
    ),
    (
        "What can go wrong with very large inputs?",
        "Time grows with size, so a huge argument may hold up everybody else; memory "
        "should stay about the same.",
    ),
    (
        "Is a better algorithm worth the trouble?",
        "Probably not: measurements show that most of the delay comes from disk and "
        "network rather than computation.",
    ),
    (
        "Which part will age badly?",
        "The hidden assumption about ordering, since later versions of the platform "
        "promise nothing of that kind.",
    ),
    (
        "What belongs in the changelog?",
        "One sentence for users: behaviour is unchanged, names are clearer, and old "
        "imports continue to work until spring.",
    ),
    (
        "How should errors reach the user?",
        "Raise early with a message naming the offending field, and let the outermost "
        "layer turn it into advice.",
    ),
    (
        "Would you split this in two?",
        "I would wait until a second caller appears; splitting now only scatters a short "
        "story over more pages.",
    ),
    (
        "What does a reviewer ask about this?",
        "Why nothing is logged, whether an absent value differs from zero, and who cleans"
        " up after a failure.",
    ),
    (
        "How does this behave on a slow disk?",
        "Every operation blocks, so interactive users notice pauses; buffering hides some"
        " of them but delays durability.",
    ),
    (
        "Which habit of the author do you see?",
        "Short steps, early exits and modest vocabulary; comments appear just where "
        "history would otherwise be lost.",
    ),
    (
        "What should monitoring watch?",
        "Count calls, failures and their duration by quantile, then alert when the "
        "slowest percent doubles within an hour.",
    ),
    (
        "What would make you delete it?",
        "If usage statistics stay at nothing for a quarter and the documentation no "
        "longer mentions that feature.",
    ),
    (
        "How do other languages do this?",
        "Many provide something similar in their base library, usually with iterators and"
        " stricter rules about ownership.",
    ),
    (
        "What is the cheapest improvement?",
        "Better naming costs minutes and saves each reader some puzzling; speed work "
        "should follow a profile.",
    ),
    (
        "When did you last see such a bug?",
        "Last winter an overnight job skipped half its records, since somebody compared "
        "dates as plain strings.",
    ),
)

CHAT_SYSTEM: Final = "You are a friendly assistant. Keep answers short."

CHAT_FRAMES: Final = (
    "",
    "Quick one: ",
    "My sister asks: ",
    "Between meetings, ",
    "For a school project, ",
    "Just curious, ",
    "Before I leave, ",
    "Honestly, ",
)

CHAT_ACTS: Final = (
    "what should I know about",
    "how do I get better at",
    "why do people like",
    "what goes well with",
    "how did people come to",
    "what surprises beginners about",
    "how much time goes into",
    "what is a kind thing to say about",
    "where would I start with",
    "what do experts argue about in",
)

CHAT_SUBJECTS: Final = (
    "baking bread",
    "night trains",
    "growing tomatoes",
    "old maps",
    "learning the cello",
    "winter swimming",
    "keeping bees",
    "long walks",
    "repairing bicycles",
    "writing letters",
    "chess openings",
    "mountain weather",
    "paper boats",
    "city birds",
    "black tea",
    "short stories",
    "wooden furniture",
    "folk dances",
    "the moon landing",
    "hand puppets",
    "desert plants",
    "lighthouses",
    "sign language",
    "volcanoes",
)

CHAT_ANSWERS: Final = (
    "Start small, be patient, and ask somebody who has done it for years.",
    "Most of it is habit; the rest is weather, luck and good company.",
    "It rewards attention: the details that look dull at first turn out to matter.",
    "People disagree, but nearly everyone mentions the quiet and the slow pace.",
    "A borrowed book and one free afternoon are enough to find out whether you like it.",
    "Mistakes are cheap at the beginning, so make plenty of them early.",
)
