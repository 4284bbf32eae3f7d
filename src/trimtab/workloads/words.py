"""Common English words, one token each with the space before them, and text made of them."""

import random
from typing import Final

_WORD_LIST: Final = (
    "about above across action after again age air all almost along already also always among"
    " animal answer any area arm around art ask away baby back bad ball bank base bed before"
    " begin behind best better between big bird black blood blue board boat body book both box"
    " boy bring brother brown build business buy call car care carry case catch cause center"
    " change check child choose church city class clean clear close cold color come common copy"
    " corner cost count country course cover cross cut dark daughter day deal deep door down"
    " draw dream drive drop dry early earth east easy eat edge egg end energy enough even evening"
    " ever every eye face fact fall family far farm fast father feel feet few field fight fill"
    " film find fine finger fire first fish five floor flow follow food foot force form four"
    " free fresh friend front full game garden gas girl glass gold good grass gray great green"
    " ground group grow hair half hand happy hard hat head hear heart heat heavy help high hill"
    " history hold home hope horse hot hour house idea inside iron island job join jump keep key"
    " kind king lake land language large last late laugh lead learn leave left leg letter level"
    " life light line list listen live long look love low machine main map mark market matter"
    " mean measure meet middle milk mind minute miss money month moon more morning mother"
    " mountain mouth move music name nature near neck never new night north note number ocean"
    " office old open order outside page paper part party pass past pay people phone picture"
    " piece place plan plant play point poor power press pull push question quick rain reach"
    " read ready red rest rich ride right ring rise river road rock roll room rose round rule"
    " run sail salt sand school science sea season seat second see seed sell send seven shape"
    " share ship shoe shop short show side sign silver simple sing sister sit six size skin"
    " sky sleep small snow soft soil song sound south space speak spring square stand star"
    " start state station stay step still stone stop store story street strong student study"
    " sugar summer sun table tail talk tall teach team tell ten test thank thick thin think"
    " third thought three top touch town track trade train travel tree trip true try turn two"
    " type under unit village visit voice wait walk wall want war warm watch water wave way"
    " wear week weight west wheel white wide wife wild wind window winter wish woman wonder"
    " wood word work world write year yellow young"
)
WORDS: Final = tuple(_WORD_LIST.split())


def block_words(key: str, count: int) -> list[str]:
    """Give the first `count` words of the text that belongs to a key.

    The same key always gives the same text, and a shorter text is the beginning of a longer one;
    this is how block ids of a trace become text that repeats where the ids repeat.
    """
    return random.Random(key).choices(WORDS, k=count)
