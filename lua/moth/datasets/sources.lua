--- Folders, mirrors and checksums of MNIST's, FashionMNIST's and KMNIST's files.
-- Per file: SHA-256 of the published .gz, and MD5 of the unpacked content, as others have compressed it again; of
-- KMNIST, MD5 of the published .gz.
local sources = {
  MNIST = {
    folders = { "mnist", "MNIST", "MNIST/raw" },
    mirrors = { "https://ossci-datasets.s3.amazonaws.com/mnist/",
      "https://storage.googleapis.com/cvdf-datasets/mnist/" },
    classes = { "0", "1", "2", "3", "4", "5", "6", "7", "8", "9" },
    sha256 = {
      ["train-images-idx3-ubyte"] = "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
      ["train-labels-idx1-ubyte"] = "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
      ["t10k-images-idx3-ubyte"] = "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
      ["t10k-labels-idx1-ubyte"] = "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    md5 = {
      ["train-images-idx3-ubyte"] = "6bbc9ace898e44ae57da46a324031adb",
      ["train-labels-idx1-ubyte"] = "a25bea736e30d166cdddb491f175f624",
      ["t10k-images-idx3-ubyte"] = "2646ac647ad5339dbf082846283269ea",
      ["t10k-labels-idx1-ubyte"] = "27ae3e4e09519cfbb04c329615203637",
    },
  },
  FashionMNIST = {
    folders = { "fashion_mnist", "fashion-mnist", "FashionMNIST", "FashionMNIST/raw", "fashion" },
    mirrors = { "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
      "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/" },
    classes = { "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
      "Ankle boot" },
    sha256 = {
      ["train-images-idx3-ubyte"] = "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
      ["train-labels-idx1-ubyte"] = "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
      ["t10k-images-idx3-ubyte"] = "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
      ["t10k-labels-idx1-ubyte"] = "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
    md5 = {
      ["train-images-idx3-ubyte"] = "f4a8712d7a061bf5bd6d2ca38dc4d50a",
      ["train-labels-idx1-ubyte"] = "9018921c3c673c538a1fc5bad174d6f9",
      ["t10k-images-idx3-ubyte"] = "8181f5470baa50b63fa0f6fddb340f0a",
      ["t10k-labels-idx1-ubyte"] = "15d484375f8d13e6eb1aabb0c3f46965",
    },
  },
  KMNIST = {
    folders = { "kmnist", "KMNIST", "KMNIST/raw" },
    mirrors = { "http://codh.rois.ac.jp/kmnist/dataset/kmnist/" },
    classes = { "o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo" },
    sha256 = {}, md5 = {},
    packed = {
      ["train-images-idx3-ubyte"] = "bdb82020997e1d708af4cf47b453dcf7",
      ["train-labels-idx1-ubyte"] = "e144d726b3acfaa3e44228e80efcd344",
      ["t10k-images-idx3-ubyte"] = "5c965bf0a639b31b8f53240b1b52f4d7",
      ["t10k-labels-idx1-ubyte"] = "7320c461ea6c1c855c0b718fb2a4b134",
    },
  },
}

return sources
