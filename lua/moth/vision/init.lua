--- moth.vision: what detectors are made of: boxes, non-maximum suppression, regions of features, a pyramid of features,
-- anchors, losses (docs/vision.md). Names, options and values are torchvision.ops'; boxes are (x1, y1, x2, y2) in
-- pixels from the upper left corner, (0, 0); which box, class or image of a batch counts from 1.
local lazy = require "moth.lang.lazy"

local files = {}
for file, names in require "moth.each" {
  boxes = [[box_area box_convert box_iou generalized_box_iou distance_box_iou complete_box_iou clip_boxes_to_image
    remove_small_boxes masks_to_boxes nms batched_nms]],
  regions = "roi_align RoIAlign",
  losses = "sigmoid_focal_loss generalized_box_iou_loss distance_box_iou_loss complete_box_iou_loss",
  pyramid = "FeaturePyramidNetwork FrozenBatchNorm2d", anchors = "AnchorGenerator BoxCoder match",
} do
  for name in names:gmatch "[%w_]+" do files[name] = { file, name } end
end
return lazy({}, "moth.vision.", files, "moth.vision")
