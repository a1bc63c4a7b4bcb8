"""Devices other than the CPU: models on an NPU and on GPUs, OpenVINO GenAI on GPUs, and falling back to the CPU."""
