"""Export policies as files that run without this package: ONNX and TorchScript."""
