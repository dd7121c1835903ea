"""Sources of the public tables of the benchmarks, and checksums of their files.

The files are not part of bdtppl; `bdtppl.datasets.load` reads them from the user's folder.
"""

from typing import Literal, NamedTuple


class Source(NamedTuple):
    """Origin of a table, and the checksum of its file."""

    task: Literal["classification", "regression"]
    """Whether the target is a class or a real number."""
    origin: str
    """Author, name and place of the original."""
    sha256: str
    """Hexadecimal SHA-256 of the CSV file."""


SOURCES: dict[str, Source] = {
    "haberman": Source(
        "classification",
        "Haberman (1976), Haberman's Survival, UCI, doi:10.24432/C5XK51",
        "30ef08f9b16ba1d038406e76a5215397d0f85a7e0ad2da19dcc5ae394a09823a",
    ),
    "vertebral_2c": Source(
        "classification",
        "Barreto and Neto (2005), Vertebral Column, column_2C_weka.arff, UCI, doi:10.24432/C5K89B",
        "fb271316fed97237a2cd2f5c67327d5d19d0509ee37eb5dd3b0d8aef42679e69",
    ),
    "caesarian": Source(
        "classification",
        "Amin and Ali (2018), Caesarian Section Classification, UCI, doi:10.24432/C5N59X",
        "52492e325be7cf96f8ebac1c774e412bd020dcfe006d8e0b208ed42ca4fa78d2",
    ),
    "raisin": Source(
        "classification",
        "Cinar, Koklu and Tasdemir (2020), Raisin, UCI, doi:10.24432/C5660T",
        "47d7b6ae8b3b89d2349f3794a446e0196b3f9f140917920280273ded3f44dc83",
    ),
    "breast_cancer_original": Source(
        "classification",
        "Wolberg (1992), Breast Cancer Wisconsin (Original), UCI, doi:10.24432/C5HP4Z",
        "ed61db0c277963578a61626244dc832eedb5107250096a9aca714a7064a5def4",
    ),
    "pima": Source(
        "classification",
        "Smith et al. (1988), Pima Indians Diabetes, formerly on UCI",
        "c62fdc4685d8e47c2a80e2303f88caa99afaeeadea58873fcafffcf288c3c7be",
    ),
    "kyphosis": Source(
        "classification",
        "R package rpart, from Chambers and Hastie (1992)",
        "9fe51b4d5179c13e5df1dfafa3d47c16ff1bcf3626482c63719c084fd5cc1b53",
    ),
    "ripley_synth_train": Source(
        "classification",
        "R package MASS (synth.tr), from Ripley (1996)",
        "7dd7bfb316fe0cd9c11296b6477efc33df6ad6fe01222bf42d5fd7bda253d8e6",
    ),
    "ripley_synth_test": Source(
        "classification",
        "R package MASS (synth.te), from Ripley (1996)",
        "70b9be86a5d51ba9321c01601605a8adb115f8d0b1c03b86813eb0c3814bc97d",
    ),
    "heart_statlog": Source(
        "classification",
        "Statlog (Heart), UCI, doi:10.24432/C57303",
        "28c04a46207894b1ef8026cd59caa1bee0190677c4269d9aeb5c28510b0afae8",
    ),
    "default_credit_card": Source(
        "classification",
        "Yeh and Lien (2009), Default of Credit Card Clients, UCI, doi:10.24432/C55S3H",
        "dfb1570f223efb65c0084027570369bdff6cc291b8238b9adce17ab60da4ca83",
    ),
    "seismic_bumps": Source(
        "classification",
        "Sikora and Wrobel (2010), Seismic Bumps, UCI, doi:10.24432/C5W902",
        "2c0ab40750192b3b00ab0135570a2bafa15010041a479c8775f12802a526abab",
    ),
    "magic_gamma": Source(
        "classification",
        "Bock (2007), MAGIC Gamma Telescope, UCI, doi:10.24432/C52C8B",
        "ed9c3c747b6a424f579fb830b375bfea72ac4b0f4520fb2edd1ee609df79d0bc",
    ),
    "messidor_features": Source(
        "classification",
        "Antal and Hajdu (2014), Diabetic Retinopathy Debrecen, UCI, doi:10.24432/C5XP4P",
        "a129e618cdaa16800b27d7e6a657a46ce1cf73631cec16f3cb1aa29a35b5aadf",
    ),
    "eeg_eye_state": Source(
        "classification",
        "Roesler (2013), EEG Eye State, UCI, doi:10.24432/C57G7J",
        "10e256892acbf02520b2502fb4db80e13642cb839b0f14c63a5db4acead7e297",
    ),
    "ecoli": Source(
        "classification",
        "Nakai (1996), Ecoli, UCI, doi:10.24432/C5388M",
        "285ea2b210f6a00fc94235da01d4536f8b42f76aa5cefd081133182efece41bd",
    ),
    "thyroid_odds": Source(
        "classification",
        "ODDS library (Rayana 2016), odds.cs.stonybrook.edu, from UCI, doi:10.24432/C5D010",
        "f6c6cc65107abdd9e0da291706a61c07105a6c7e48da34dac009bb84ff6c78d3",
    ),
    "vertebral_odds": Source(
        "classification",
        "ODDS library (Rayana 2016), odds.cs.stonybrook.edu, from UCI, doi:10.24432/C5K89B",
        "fa37f029dbbad1fcc38c75fa8f581c690706c120004922aea098a9de126441ab",
    ),
    "glass_odds": Source(
        "classification",
        "ODDS library (Rayana 2016), odds.cs.stonybrook.edu, from UCI, doi:10.24432/C5WW2P",
        "4cb19fb78852c1dca446449faa30b59eb47e20c434fb43e46346d94c63686ff1",
    ),
    "ecoli_odds": Source(
        "classification",
        "classes omL, imL and imS of Nakai (1996), Ecoli, UCI, doi:10.24432/C5388M, are outliers",
        "73e25699feb05b8a2ff47d35aa837f236c4430698f774af9e85f3b3792eaa960",
    ),
    "concrete": Source(
        "regression",
        "Yeh (1998), Concrete Compressive Strength, UCI, doi:10.24432/C5PK67",
        "12f399c11f0d1d4dd8d67cf93d70e433c8970ed765abdaf897f6a98c3ba28ed7",
    ),
    "auto_mpg": Source(
        "regression",
        "Quinlan (1993), Auto MPG, UCI, doi:10.24432/C5859H",
        "78d7486ed2a671c95f3dbc8b558e47e140e38ce2ff4d6c7bcc8e4c44a442c77a",
    ),
    "energy_heating": Source(
        "regression",
        "Tsanas and Xifara (2012), Energy Efficiency, UCI, doi:10.24432/C51307",
        "556abcbfaddaeba5f19772fbac24ac6982fef2605e345bcba323bed65b9f3119",
    ),
    "cgm_train": Source(
        "regression",
        "github.com/jodie-c/DCC-Tree, datasets/cgm/cgm.pickle",
        "888862ae9c79efa7caa0c9b692af3ad2f504edc83da4a3901fe1738e8a9d5a28",
    ),
    "cgm_test": Source(
        "regression",
        "github.com/jodie-c/DCC-Tree, datasets/cgm/cgm.pickle",
        "cc4c6205389ac034e0e3a4c72a7d6e4748fccab6f1ea51c7575d7cd78a7d5f8f",
    ),
    "wu_train": Source(
        "regression",
        "github.com/jodie-c/DCC-Tree, datasets/wu/wu.pickle",
        "d247acd3bcdcafd89d2f0b15b3651c2641220ba76b9470a8d5321cda29352677",
    ),
    "wu_test": Source(
        "regression",
        "github.com/jodie-c/DCC-Tree, datasets/wu/wu.pickle",
        "0ebe3d5d3b327dc327ddcb4b623c6127df2280881638ab6b91316c2abec98d23",
    ),
}
"""Every table that `load` knows: its task, where it can be had, and the sha256 of its file."""
