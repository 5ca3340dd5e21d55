// Package reset resets sick GPUs: it waits until no claim has one, makes this process let go of the
// driver, runs the driver's own program, and says what came of it. It never decides what a fault is or
// when it is over, and never resets a GPU that a claim has, or on which there are partitions.
//
// NVML has no call for it. The driver's nvidia-smi resets a single GPU, of Ampere and later also
// beside its NVLink peers, and refuses where it cannot (its manual page, --gpu-reset). Writing to
// /sys/bus/pci/devices/ADDRESS/reset is no way: the kernel resets the function below a driver that
// does not expect it. NVIDIA's own remediation (NVIDIA/NVSentinel, gpu-reset) runs nvidia-smi, too.
package reset
