// Package reset resets faulty GPUs: it waits until no claim has the GPU, closes the driver in this
// process, runs the driver's own program, and reports the result. It never decides what a fault is
// or when it ends, and never resets a GPU with claims or partitions.
//
// NVML has no call for it. The driver's nvidia-smi resets a single GPU, from Ampere on also beside
// its NVLink peers, and refuses if it cannot (its manual page, --gpu-reset). A write to
// /sys/bus/pci/devices/ADDRESS/reset would reset the function below a driver that does not expect
// it. NVIDIA's own remediation (NVIDIA/NVSentinel, gpu-reset) runs nvidia-smi, too.
package reset
