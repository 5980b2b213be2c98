--- moth.models: whole networks. Each file is loaded when it is first asked for.
--
-- Images: LeNet, resnet18 … resnet152, resnext…, wide_resnet…, vgg11 … vgg19 (and vgg11_bn …), densenet121 …,
-- mobilenet_v2, mobilenet_v3_…, efficientnet_…, regnet_…, convnext_…, swin_…, ViT, vit_b_16, vit_b_32, vit_l_16, UNet;
-- to find things retinanet_resnet50_fpn; to make images VAE, DCGANGenerator, DCGANDiscriminator. Text: GPT (GPT-2),
-- Llama, Mamba, BERT, ModernBERT, minigpt.
-- Names of weights are torchvision's and Hugging Face's: their files load (`load_state_dict(moth.load(path))`,
-- `from_pretrained(folder)`); models.load(path) takes a language model with its tokenizer.
local each = require "moth.each"
local files = { GPT = "gpt", minigpt = "minigpt", Llama = "llama", BERT = "bert",
  ModernBERT = "modernbert", Mamba = "mamba", LeNet = "lenet", UNet = "unet",
  VAE = "vae", load = "load", save_gguf = { "gguf", "save" }, ViT = { "vit", "ViT" } }
for file, names in each {
  resnet = "resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d resnext101_32x8d resnext101_64x4d \z
    wide_resnet50_2 wide_resnet101_2", dcgan = "DCGANGenerator DCGANDiscriminator",
  vgg = "vgg11 vgg13 vgg16 vgg19 vgg11_bn vgg13_bn vgg16_bn vgg19_bn", vit = "vit_b_16 vit_b_32 vit_l_16",
  densenet = "densenet121 densenet161 densenet169 densenet201",
  mobilenet = "mobilenet_v2 mobilenet_v3_large mobilenet_v3_small",
  efficientnet = "efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5 \z
    efficientnet_b6 efficientnet_b7 efficientnet_v2_s efficientnet_v2_m efficientnet_v2_l",
  regnet = "regnet_x_400mf regnet_x_800mf regnet_x_1_6gf regnet_x_3_2gf regnet_x_8gf regnet_x_16gf regnet_x_32gf \z
    regnet_y_400mf regnet_y_800mf regnet_y_1_6gf regnet_y_3_2gf regnet_y_8gf regnet_y_16gf regnet_y_32gf \z
    regnet_y_128gf",
  convnext = "convnext_tiny convnext_small convnext_base convnext_large",
  retinanet = "retinanet_resnet50_fpn", swin = "swin_t swin_s swin_b swin_v2_t swin_v2_s swin_v2_b",
} do
  for name in names:gmatch "[%w_]+" do files[name] = { file, name } end
end

return require("moth.lang.lazy")({}, "moth.models.", files)
