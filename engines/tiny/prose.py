"""Short paragraphs of prose: the answers of the small models to requests that are not for code."""

PARAGRAPHS = (
    (
        "The sea covers most of the earth. It stores the warmth of summer, gives it back in winter, and moves with "
        "the moon twice a day."
    ),
    (
        "A river begins as rain on high ground. On its way down it collects other streams, slows in the plain, and "
        "ends in the sea."
    ),
    (
        "Bread needs only flour, water, salt and time. The dough rests in a warm place until it has doubled, and "
        "then it goes into a hot oven."
    ),
    (
        "The old town has narrow streets and a market in the middle. On Saturdays people buy cheese, flowers and "
        "vegetables there."
    ),
    (
        "Good sleep starts in the evening. Dim the light, leave your telephone in another room, and go to bed at "
        "the same hour every night."
    ),
    (
        "Music joins people who share no language. A simple tune, repeated often enough, stays in memory for a "
        "whole life."
    ),
    (
        "Winter brings short days and clear nights. Many birds leave for the south, and those that stay depend on "
        "seeds and berries."
    ),
    (
        "Learning takes patience. Read a little every day, explain it to someone else in your own words, and "
        "return to it after a week."
    ),
    (
        "The moon has no light of its own. We see the part that the sun shines on, which grows and shrinks within "
        "a month."
    ),
    (
        "A garden is never finished. Plant trees first because they grow slowly, then bushes, and fill the gaps "
        "with flowers."
    ),
    (
        "Coffee came to Europe from the south, by way of the great ports. At first doctors sold it as a medicine "
        "for the stomach."
    ),
    (
        "Trade made cities rich when they lay on a road or a harbour. Merchants brought silk, spices and news from "
        "far away."
    ),
    (
        "History is written by those who kept records. So we know much about kings and taxes, and little about "
        "ordinary lives."
    ),
    (
        "A letter should say early what it asks for. Thank the reader, give one reason, and close with a friendly "
        "sentence."
    ),
    (
        "Mountains make their own weather. Warm air rises along the slopes, cools down, and falls as rain or snow "
        "before it gets across."
    ),
    (
        "Friends are found by doing things together. Join a club, help a neighbour, and invite people before you "
        "know them well."
    ),
    (
        "The number is found by simple steps. Write down what is known, name what is missing, and solve the "
        "equation for it."
    ),
    (
        "Once there was a keeper who lived alone in a lighthouse. Every night he lit the lamp, and every morning "
        "he counted the ships."
    ),
    (
        "Chess is a game of plans. Bring out your pieces early, keep the king safe, and attack only where you are "
        "stronger."
    ),
    (
        "Money is a promise that others accept. Its value depends on trust, and trust depends on rules that "
        "everybody follows."
    ),
    (
        "Health depends on small habits. Walk for half an hour, drink enough water, and eat fresh food with little "
        "sugar."
    ),
    ("Words change their meaning over the centuries. What was an insult to our ancestors may be a compliment today."),
    ("Travel light and start early. The best days of a journey are often those for which nothing was planned at all."),
    (
        "Both sides have good arguments. The first costs less at once, while the second saves trouble later and "
        "lasts longer."
    ),
    (
        "Trees talk through their roots, as some people say. In truth a forest shares water and food by way of "
        "tiny threads."
    ),
    (
        "The law protects the weak from the strong. A judge hears both parties, weighs the evidence, and gives "
        "reasons for the decision."
    ),
    ("A painting shows how its time saw the world. Look at the light first, then at the hands, and last at the faces."),
    (
        "Cooking for guests is easy with a list. Choose one dish that you know well, and prepare the rest on the "
        "day before."
    ),
    (
        "Time seems to run faster as we grow older. New places and new tasks make it slow again, because memory "
        "has more to hold."
    ),
    (
        "Stars differ in colour because they differ in heat. Blue ones burn quickly, while red ones glow for many "
        "billions of years."
    ),
    (
        "An honest review names what went well before it names what failed. It speaks about the work and never "
        "about the person."
    ),
    (
        "Every team needs a common goal. Meet once a week, decide what matters most, and let each member choose "
        "how to do it."
    ),
)
