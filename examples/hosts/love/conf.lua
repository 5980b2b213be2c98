-- With --steps N nothing is shown: no window, no sound.
function love.conf(t)
  local hidden = false
  for _, word in ipairs(arg) do hidden = hidden or word == "--steps" end
  t.identity = "moth_digits"
  t.modules.audio, t.modules.joystick, t.modules.physics, t.modules.sound = false, false, false, false
  t.window.title, t.window.width, t.window.height = "moth learns to draw digits", 840, 460
  if hidden then
    t.window = nil
    t.modules.window, t.modules.graphics = false, false
  end
end
