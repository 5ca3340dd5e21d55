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

	// The loop around what follows.
	"pkg/scaleout/control": 8,

	// What the cluster talks to.
	"pkg/driver":           7,
	"pkg/scaleout/pair":    7,
	"pkg/scaleout/ready":   7,
	"pkg/scaleout/keda":    7,
	"pkg/scaleout/explain": 7,
	"pkg/scaleout/eks":     8,

	// The cluster as it is, for who decides.
	"pkg/scaleout/view":  6,
	"pkg/scaleout/usage": 6,

	// What users are given, made of data.
	"pkg/scaleout/scaledobject": 6,
	"pkg/scaleout/profile":      5,

	// What is asked of workloads, and of the plan on their behalf.
	"pkg/scaleout/workload": 5,
	"pkg/scaleout/forecast": 5,

	// What is to be kept, for the view of the cluster.
	"pkg/scaleout/headroom": 5,

	// What decides about many nodes, from what is known of one.
	"pkg/scaleout": 4,

	// What decides.
	"pkg/prepare": 3,
	"pkg/policy":  3,
	"pkg/health":  3,

	// What is seen of what is held.
	"pkg/sample": 3,

	// One mechanism each.
	"pkg/slice":     2,
	"pkg/journal":   2,
	"pkg/cdi":       2,
	"pkg/mps":       2,
	"pkg/timeslice": 2,
	"pkg/vfio":      2,

	// The machine.
	"pkg/nvml": 1,
	"pkg/lock": 1,

	// Facts about boards, in the words of the floor below.
	"pkg/catalog": 1,

	// What a binary knows of itself.
	"pkg/release": 0,

	// Plain values.
	"pkg/gpu": 0,

	// Where an installed driver has what: for who loads its library, pkg/nvml, and
	// who runs its programs, pkg/timeslice and pkg/mps.
	"pkg/driverroot": 0,
}

// nvmlModule may be imported by these rooms only, because everything else is to
// work without a driver library: pkg/nvml wraps it, pkg/cdi hands its handle to
// nvcdi, and the simulator answers its calls.
const nvmlModule = "github.com/NVIDIA/go-nvml/"

var nvmlImporters = []string{"pkg/nvml", "pkg/cdi", "test/nvmlsim"}
