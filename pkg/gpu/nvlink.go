package gpu

// Link lists the other ends of a GPU's active NVLinks.
type Link struct {
	// Peers are the UUIDs of GPUs at the other end of a direct link.
	Peers []string
	// Switched is true when a link ends in an NVSwitch. All switched GPUs of
	// a machine share one fabric.
	Switched bool
}

// Any reports whether a link is active.
func (l Link) Any() bool { return l.Switched || len(l.Peers) > 0 }

// GroupByNVLink returns the GPUs with NVLinkGroup set from their links, which
// are keyed by UUID. A GPU without links, or linked only to itself, has no group.
func GroupByNVLink(gpus []GPU, links map[string]Link) []GPU {
	groups := newDisjointSets(len(gpus))
	byUUID := make(map[string]int, len(gpus))
	for i, g := range gpus {
		byUUID[g.UUID] = i
	}
	firstSwitched := -1
	for i, g := range gpus {
		link := links[g.UUID]
		for _, peer := range link.Peers {
			if j, known := byUUID[peer]; known {
				groups.join(i, j)
			}
		}
		switch {
		case !link.Switched:
		case firstSwitched < 0:
			firstSwitched = i
		default:
			groups.join(firstSwitched, i)
		}
	}

	smallest := map[int]int{}
	size := map[int]int{}
	for i, g := range gpus {
		root := groups.root(i)
		if m, seen := smallest[root]; !seen || g.Minor < m {
			smallest[root] = g.Minor
		}
		size[root]++
	}
	grouped := make([]GPU, len(gpus))
	for i, g := range gpus {
		g.NVLinkGroup = nil
		if root := groups.root(i); size[root] > 1 || links[g.UUID].Switched {
			minor := smallest[root]
			g.NVLinkGroup = &minor
		}
		grouped[i] = g
	}
	return grouped
}

// disjointSets is a disjoint-set forest over 0..n-1.
type disjointSets []int

func newDisjointSets(n int) disjointSets {
	s := make(disjointSets, n)
	for i := range s {
		s[i] = i
	}
	return s
}

func (s disjointSets) root(i int) int {
	for s[i] != i {
		i = s[i]
	}
	return i
}

func (s disjointSets) join(i, j int) { s[s.root(i)] = s.root(j) }

// FabricState is the progress of the fabric manager in adding a GPU to the machine's NVLink fabric
// (nvmlGpuFabricState_t in nvml.h).
type FabricState string

const (
	// FabricReady: the fabric manager has finished, or the GPU needs no fabric.
	FabricReady FabricState = ""
	// FabricNotStarted: the fabric manager has not begun. CUDA does not start on the GPU, with
	// CUDA_ERROR_SYSTEM_NOT_READY (802), nor in the next state.
	FabricNotStarted FabricState = "NotStarted"
	// FabricInProgress: the fabric manager has begun.
	FabricInProgress FabricState = "InProgress"
)
