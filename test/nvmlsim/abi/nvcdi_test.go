package abi_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/node/cdi"
)

// spec lets nvcdi write the specification of one GPU of a simulated machine.
func spec(t *testing.T, d *daemon, id string) *specs.Spec {
	t.Helper()
	generated, err := generate(library(), d.root, id)
	if err != nil {
		t.Fatalf("generate the specification of %s: %v", id, err)
	}
	return generated
}

func generate(library nvml.Interface, root, id string) (*specs.Spec, error) {
	lib, err := nvcdi.New(
		nvcdi.WithNvmlLib(library),
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithDriverRoot(root),
		nvcdi.WithDevRoot(root),
		nvcdi.WithNVIDIACDIHookPath("/usr/bin/nvidia-cdi-hook"),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
	if err != nil {
		return nil, err
	}
	generated, err := lib.GetSpec(id)
	if err != nil {
		return nil, err
	}
	return generated.Raw(), nil
}

// printNodes prints the paths of a device's nodes, as the role of another process.
func printNodes(library nvml.Interface, root, id string) error {
	generated, err := generate(library, root, id)
	if err != nil {
		return err
	}
	for _, n := range generated.Devices[0].ContainerEdits.DeviceNodes {
		fmt.Println(n.Path)
	}
	return nil
}

// open is a library that stays initialised.
type open struct{ nvml.Interface }

// Use implements cdi.Library.
func (o open) Use(do func(nvml.Interface) error) error { return do(o.Interface) }

// deriveEdits lets Mica derive the edits of all GPUs, as the role of another process.
func deriveEdits(library nvml.Interface, root string) error {
	edits := cdi.NewEdits(open{library}, cdi.Roots{Host: "/", Local: root, Hook: "/usr/bin/nvidia-cdi-hook"}, klog.Background())
	if _, err := edits.Common(); err != nil {
		return err
	}
	count, ret := library.DeviceGetCount()
	for i := 0; i < count && ret == nvml.SUCCESS; i++ {
		var device nvml.Device
		var uuid string
		if device, ret = library.DeviceGetHandleByIndex(i); ret != nvml.SUCCESS {
			break
		}
		if uuid, ret = device.GetUUID(); ret != nvml.SUCCESS {
			break
		}
		derived, err := edits.GPU(uuid)
		if err != nil {
			return err
		}
		fmt.Println(derived.DeviceNodes[0].Path)
	}
	if ret != nvml.SUCCESS {
		return ret
	}
	return nil
}

// libnvidia-sandboxutils, which every driver since R560 has, crashes the process
// that initialises it more than once.
func TestMicaLeavesSandboxUtilsAlone(t *testing.T) {
	t.Parallel()
	d := start(t, "g5.12xlarge")
	cmd := roleCommand(d, "edits")
	log := &lockedBuffer{} // nvcdi logs each file that a simulated driver lacks
	cmd.Stderr = log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, log)
	}
	same(t, "device nodes of all GPUs", strings.Fields(string(out)), []string{"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3"})
}

func TestNVCDIGeneratesASpec(t *testing.T) {
	d := start(t, "p5.48xlarge").use()
	raw := spec(t, d, "3")
	if len(raw.Devices) != 1 {
		t.Fatalf("the specification has %d devices", len(raw.Devices))
	}
	device := func(name string) string { return name + " from " + filepath.Join(d.root, name) }
	same(t, "device nodes of the GPU", nodesOf(d, raw.Devices[0].ContainerEdits), []string{device("/dev/nvidia3")})
	same(t, "device nodes of every container", nodesOf(d, raw.ContainerEdits), []string{
		device("/dev/nvidia-modeset"), device("/dev/nvidia-uvm"), device("/dev/nvidia-uvm-tools"), device("/dev/nvidiactl")})

	var mounts, hooks []string
	for _, m := range raw.ContainerEdits.Mounts {
		mounts = append(mounts, m.ContainerPath+" from "+strings.TrimPrefix(m.HostPath, d.root)+" "+strings.Join(m.Options, ","))
	}
	const files, socket = "ro,nosuid,nodev,rbind,rprivate", "nosuid,nodev,rbind,rprivate,noexec"
	same(t, "mounts", mounts, []string{
		"/run/nvidia-persistenced/socket from /run/nvidia-persistenced/socket " + socket,
		"/usr/bin/nvidia-cuda-mps-control from /usr/bin/nvidia-cuda-mps-control " + files,
		"/usr/bin/nvidia-cuda-mps-server from /usr/bin/nvidia-cuda-mps-server " + files,
		"/usr/bin/nvidia-smi from /usr/bin/nvidia-smi " + files,
		"/usr/lib64/libcuda.so.580.95.05 from /usr/lib64/libcuda.so.580.95.05 " + files,
		"/usr/lib64/libnvidia-ml.so.580.95.05 from /usr/lib64/libnvidia-ml.so.580.95.05 " + files,
		"/usr/lib64/libnvidia-sandboxutils.so.580.95.05 from /usr/lib64/libnvidia-sandboxutils.so.580.95.05 " + files,
	})
	for _, h := range raw.ContainerEdits.Hooks {
		links := h.Args[2:]
		slices.Sort(links) // nvcdi has no order for them
		hooks = append(hooks, h.HookName+" "+strings.Join(append(h.Args[:2:2], links...), " "))
	}
	same(t, "hooks", hooks, []string{
		"createContainer nvidia-cdi-hook create-symlinks --link --link --link --link --link --link" +
			" libcuda.so.1::/usr/lib64/libcuda.so libcuda.so.580.95.05::/usr/lib64/libcuda.so.1" +
			" libnvidia-ml.so.1::/usr/lib64/libnvidia-ml.so libnvidia-ml.so.580.95.05::/usr/lib64/libnvidia-ml.so.1" +
			" libnvidia-sandboxutils.so.1::/usr/lib64/libnvidia-sandboxutils.so libnvidia-sandboxutils.so.580.95.05::/usr/lib64/libnvidia-sandboxutils.so.1",
		"createContainer nvidia-cdi-hook disable-device-node-modification",
		"createContainer nvidia-cdi-hook enable-cuda-compat --host-driver-version=580.95.05",
		"createContainer nvidia-cdi-hook update-application-profile",
		"createContainer nvidia-cdi-hook update-ldcache --folder /usr/lib64",
	})
}

func nodesOf(d *daemon, edits specs.ContainerEdits) []string {
	var nodes []string
	for _, n := range edits.DeviceNodes {
		nodes = append(nodes, n.Path+" from "+n.HostPath)
	}
	return nodes
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s are\n  %s\nwant\n  %s", what, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}
