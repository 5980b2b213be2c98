--- models.LeNet: LeNet-5 with ReLU and max pooling, for images of 28 x 28 or 32 x 32 (LeCun et al. 1998).
local moth = require "moth"
local nn = require "moth.nn"
local signature = require "moth.utils.signature"
local F = nn.functional

local LeNet = nn.class("LeNet")

LeNet.__init = signature.init("models.LeNet(*, count num_classes=10, count in_channels=1, count image_size=28)",
  function(self, o)
    self.conv1 = nn.Conv2d(o.in_channels, 6, 5, { padding = o.image_size == 28 and 2 or 0 })
    self.conv2 = nn.Conv2d(6, 16, 5)
    self.fc1 = nn.Linear(16 * 5 * 5, 120)
    self.fc2 = nn.Linear(120, 84)
    self.fc3 = nn.Linear(84, o.num_classes)
  end)

--- x (N, in_channels, size, size) -> scores (N, num_classes)
function LeNet:forward(x)
  x = F.max_pool2d(F.relu(self.conv1(x)), 2)
  x = F.max_pool2d(F.relu(self.conv2(x)), 2)
  x = F.relu(self.fc1(moth.flatten(x, 2)))
  return self.fc3(F.relu(self.fc2(x)))
end

return LeNet
