--- moth.models: whole networks. Each file is loaded when it is first asked for.
--
-- Images: LeNet, resnet18, resnet34, resnet50, vgg11 … vgg19 (and vgg11_bn …), mobilenet_v2, ViT, vit_b_16, vit_b_32,
-- vit_l_16, UNet; to make them VAE, DCGANGenerator, DCGANDiscriminator. Text: GPT (GPT-2), Llama, Mamba, BERT,
-- ModernBERT, minigpt.
-- Names of weights are torchvision's and Hugging Face's: their files load (`load_state_dict(moth.load(path))`,
-- `from_pretrained(folder)`); models.load(path) takes a language model with its tokenizer.
local each = require "moth.each"
local files = { GPT = "gpt", minigpt = "minigpt", Llama = "llama", BERT = "bert",
  ModernBERT = "modernbert", Mamba = "mamba", LeNet = "lenet", UNet = "unet",
  VAE = "vae", load = "load", save_gguf = { "gguf", "save" }, ViT = { "vit", "ViT" }, mobilenet_v2 = "mobilenet" }
for file, names in each { resnet = "resnet18 resnet34 resnet50", dcgan = "DCGANGenerator DCGANDiscriminator",
  vgg = "vgg11 vgg13 vgg16 vgg19 vgg11_bn vgg13_bn vgg16_bn vgg19_bn", vit = "vit_b_16 vit_b_32 vit_l_16" } do
  for name in names:gmatch "[%w_]+" do files[name] = { file, name } end
end

return require("moth.lang.lazy")({}, "moth.models.", files)
