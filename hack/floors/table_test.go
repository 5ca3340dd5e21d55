package floors

// module is the import path of the project.
const module = "github.com/mica-gpu/mica/"

// floors says on which floor a room is. A room is a directory with all below it.
// A package imports rooms on lower floors and its own, nothing else; two rooms on
// one floor do not know each other.
var floors = map[string]int{
	// Flags, wiring, exit codes.
	"cmd/kubelet-plugin":  9,
	"cmd/nvidia-cdi-hook": 9,
	"cmd/controller":      9,
	"cmd/kubectl-gpu":     9,

	// pkg/node: what only the kubelet plugin has. From the top: what kubelet and the
	// API server see; what decides; one mechanism each; the machine.
	"pkg/node/driver":    7,
	"pkg/node/offer":     4,
	"pkg/node/diagnosis": 4,
	"pkg/node/prepare":   3,
	"pkg/node/monitor":   3,
	"pkg/node/sample":    3,
	"pkg/node/account":   3,
	"pkg/node/reset":     3,
	"pkg/node/publish":   3,
	"pkg/node/journal":   2,
	"pkg/node/cdi":       2,
	"pkg/node/mps":       2,
	"pkg/node/timeslice": 2,
	"pkg/node/nvml":      2,
	"pkg/node/lock":      1,
	// What the node's kubelet says of containers: for pkg/node/offer.
	"pkg/node/podresources": 1,
	"pkg/node/devnode":      1,
	// Where an installed driver has what: for who loads its library, pkg/node/nvml, and
	// who runs its programs, pkg/node/timeslice, pkg/node/reset and pkg/node/mps.
	"pkg/node/driverroot": 0,
	// How kubelet's probes are answered.
	"pkg/node/probe": 0,
	// How goroutines wake one another.
	"pkg/node/wake": 0,
	// How files are replaced, and what lets containers use them.
	"pkg/node/atomicfile": 0,
	"pkg/node/selinux":    0,

	// pkg/scaleout: which node groups have to grow, in the controller. From the top:
	// the loop and the cloud; what the cluster is told; the cluster as it is; what is
	// to be kept free, and what Cluster Autoscaler says; what decides about many nodes,
	// from what is known of one.
	"pkg/scaleout/control":    8,
	"pkg/scaleout/eks":        8,
	"pkg/scaleout/pair":       7,
	"pkg/scaleout/ready":      7,
	"pkg/scaleout/handover":   7,
	"pkg/scaleout/leftover":   7,
	"pkg/scaleout/explain":    7,
	"pkg/scaleout/view":       6,
	"pkg/scaleout/headroom":   5,
	"pkg/scaleout/autoscaler": 5,
	"pkg/scaleout":            4,

	// pkg/elastic: how many replicas a workload needs, in the controller. From the top:
	// what KEDA is told; what users are given, and how busy devices are; what is asked
	// of workloads and of the plan.
	"pkg/elastic/keda":         7,
	"pkg/elastic/usage":        6,
	"pkg/elastic/standby":      6,
	"pkg/elastic/deletioncost": 7,
	"pkg/elastic/scaledobject": 6,
	"pkg/elastic/workload":     5,
	"pkg/elastic/forecast":     5,
	"pkg/elastic/profile":      5,
	"pkg/elastic/scaletarget":  4,

	// Of a node's devices, what is published, taken and selected, for pkg/scaleout,
	// pkg/elastic and pkg/policy.
	"pkg/devices": 2,
	// The GPUs of a cluster, and the claims that hold them.
	"pkg/fleet": 3,
	// What nodes made of GPUPolicies, in the controller.
	"pkg/verdict": 4,

	// What plugin and controller share: what is published, what is known of boards,
	// plain values, what a binary knows of itself, what all command lines have in common,
	// and how texts are shortened.
	"pkg/policy":   3,
	"pkg/slice":    2,
	"pkg/catalog":  1,
	"pkg/health":   1,
	"pkg/gpu":      0,
	"pkg/release":  0,
	"pkg/crd":      0,
	"pkg/tracing":  0,
	"pkg/schedule": 0,
	"pkg/settings": 0,
	"pkg/excerpt":  0,

	// Which container runtimes use CDI, for the plugin's warning and for pkg/kubectl/doctor.
	"pkg/containerd": 0,

	// Which rules cordon the GPUs of pkg/fleet.
	"pkg/kubectl/cordon": 5,
	// The answers of kubectl gpu explain.
	"pkg/kubectl/explain": 8,
	// Which traps a cluster is in, for kubectl gpu.
	"pkg/kubectl/doctor": 7,
	// What kubectl gpu prints on.
	"pkg/kubectl/terminal": 1,
	// What kubectl gpu says, from values that were read.
	"pkg/kubectl/inventory": 7,
}

// anywhere are the commands that run on any machine, and so are built without cgo and
// link nothing of what speaks to hardware.
var anywhere = []string{"cmd/controller", "cmd/kubectl-gpu"}

// hardwareModules are what they do not link.
var hardwareModules = []string{nvmlModule, "github.com/NVIDIA/go-nvlib/", "github.com/NVIDIA/nvidia-container-toolkit/", module + "pkg/node/"}

// nvmlModule may be imported by these rooms only, because everything else is to
// work without a driver library: pkg/node/nvml wraps it, pkg/node/cdi hands its handle to
// nvcdi, and the simulator answers its calls.
const nvmlModule = "github.com/NVIDIA/go-nvml/"

var nvmlImporters = []string{"pkg/node/nvml", "pkg/node/cdi", "test/nvmlsim"}
