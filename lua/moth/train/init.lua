--- moth.train: a training loop with what surrounds it (docs/train.md).
--
--     local trainer = moth.train.Trainer(model, opt, { loss = nn.CrossEntropyLoss(), max_epochs = 10,
--       metrics = { acc = moth.metrics.Accuracy("multiclass", { num_classes = 10 }) },
--       folder = "runs/mlp", monitor = "val_acc", mode = "max", loggers = { "csv" }, resume = true })
--     trainer:fit(train_loader, val_loader)
return require("moth.lang.lazy")({}, "moth.train.", {
  Trainer = "trainer", Callback = { "callbacks", "Callback" }, EarlyStopping = { "callbacks", "EarlyStopping" },
  Checkpoint = { "callbacks", "Checkpoint" }, ProgressBar = { "callbacks", "ProgressBar" },
  Loggers = { "callbacks", "Loggers" }, find_lr = { "lr_finder", "find_lr" }, describe = { "experiment", "describe" },
})
