package fit

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/devices"
)

// Facts are what all placements share.
type Facts struct {
	Classes []*resourceapi.DeviceClass
	// Claims are all of the cluster: what is allocated to them is taken.
	Claims []*resourceapi.ResourceClaim
	// Slices are all that are published, with DeviceTaintRules applied.
	Slices []*resourceapi.ResourceSlice
	// Pods are all of the cluster, those on nodes and those that wait: their required affinity
	// to pods decides which labels of pods tell kinds and machines apart.
	Pods []*corev1.Pod
	// Selectors are those that were compiled before, for other facts; nil: none.
	Selectors *devices.Selectors
}

// Cluster places pods on machines. It is not safe for concurrent use.
//
// All pods have to be read (Pod) before the first machine is made (Machine): what they ask for
// decides what tells machines apart.
type Cluster struct {
	classes   classes
	taken     map[devices.PoolID][]devices.Holding
	network   network
	selectors *devices.Selectors
	words     vocabulary
	neighbors neighborhood
	budget    budget

	pods    map[string]*Pod
	demands map[string]*demand
	traits  map[string]*traits
	layouts map[string]*layout
	// contents are of slices by where they are in memory, numbers by what they are.
	contents map[place]content
	numbers  map[string]int
	machines map[machineKey]*Machine

	// separate keeps alike machines apart, which tests compare with.
	separate bool
	// scratch is reused: signatures of layouts are long.
	scratch signature
	// epochs counts the states that Shared and Commit have made.
	epochs int
}

// New reads the facts.
func New(facts Facts) *Cluster {
	if facts.Selectors == nil {
		facts.Selectors = devices.NewSelectors()
	}
	c := &Cluster{
		classes:   newClasses(facts.Classes),
		taken:     allocations(facts.Claims),
		network:   newNetwork(facts.Slices),
		selectors: facts.Selectors,
		words:     newVocabulary(),
		neighbors: newNeighborhood(facts.Pods),
		budget:    budget{search: searchSteps, endless: map[*demand]int{}, allowed: math.MaxInt},
		pods:      map[string]*Pod{},
		demands:   map[string]*demand{},
		traits:    map[string]*traits{},
		layouts:   map[string]*layout{},
		contents:  map[place]content{},
		numbers:   map[string]int{},
		machines:  map[machineKey]*Machine{},
	}
	for _, pool := range c.network.ids {
		for _, held := range c.taken[pool] {
			c.network.used.Add(held)
		}
	}
	return c
}

// Machine is a node in one state of use. It does not change: placing a pod gives another.
// Machines on which every pod fares alike, whatever their names, are one pointer.
type Machine struct {
	traits    *traits
	load      load
	inventory *inventory
	// takes are devices of the network that pods on this machine were given.
	takes  []*take
	origin *origin
	placed map[attempt]outcome
}

// origin is the node by which a machine is shown.
type origin struct {
	object *corev1.Node
	slices []*resourceapi.ResourceSlice
	pools  []devices.PoolID
}

// machineKey is equal for machines on which every pod fares alike.
type machineKey struct {
	traits      *traits
	inventory   *inventory
	load, takes string
	// serial is of machines that share nothing.
	serial int
}

// attempt is a pod that is tried on a machine.
type attempt struct {
	pod *Pod
	// epoch is 0 where nothing but the machine counts.
	epoch int
}

type outcome struct {
	machine *Machine
	miss    *Miss
}

// Node is how the machine is made.
type Node struct {
	// Object has labels, taints and allocatable resources. Startup taints and those of
	// nodes that are starting are removed by who calls, where the node is to count as started.
	Object *corev1.Node
	// Slices of the node, live or imagined; those in Facts.Slices of the same node do not
	// count besides. They have the node's name in spec.nodeName: those of the network come
	// with Facts.Slices.
	Slices []*resourceapi.ResourceSlice
	// Pods are on the node, or will be in any case, as those of DaemonSets.
	Pods []*corev1.Pod
}

// Machine is the node as it is now.
func (c *Cluster) Machine(n Node) *Machine {
	c.words.sealed = true
	pools := localPools(n, &c.network)
	layout := c.layout(n, pools)
	used := devices.Use{}
	ids := make([]devices.PoolID, len(pools))
	for i, pool := range pools {
		ids[i] = pool.ID
		for _, held := range c.taken[pool.ID] {
			held.Pool = layout.pools[i]
			used.Add(held)
		}
	}
	c.notePods(n.Pods)
	return c.machine(Machine{
		traits:    c.traitsOf(n.Object),
		load:      c.load(n),
		inventory: layout.inventory(used),
		origin:    &origin{object: n.Object, slices: c.visible(n, pools), pools: ids},
	})
}

// machine is the one of all that are alike.
func (c *Cluster) machine(m Machine) *Machine {
	key := machineKey{traits: m.traits, inventory: m.inventory, load: m.load.key(), takes: takesKey(m.takes)}
	if c.separate {
		key.serial = len(c.machines) + 1
	}
	if known := c.machines[key]; known != nil {
		return known
	}
	m.placed = map[attempt]outcome{}
	c.machines[key] = &m
	return &m
}

// Object is a node that stands for all that are the same machine.
func (m *Machine) Object() *corev1.Node { return m.origin.object }

// Slices are those of Object, and those of the network that it reaches.
func (m *Machine) Slices() []*resourceapi.ResourceSlice { return m.origin.slices }

// Used is what of the devices in Slices is taken.
func (m *Machine) Used() devices.Use {
	used := make(devices.Use, len(m.inventory.used))
	for id, taken := range m.inventory.used {
		id.Pool = m.origin.pools[slices.Index(m.inventory.layout.pools, id.Pool)]
		used[id] = taken
	}
	return used
}

// Miss is why a pod does not fit.
type Miss struct {
	Reason Reason
	// Text is a sentence with numbers; for ReasonDevices it only says which claim, and
	// pkg/scaleout/explain finds out more.
	Text string
	// Aborts reports that the scheduler, too, cannot reports whether the pod fits, because an
	// expression fails at run time or the search takes too long: it then gives up on the pod
	// altogether, whatever other nodes have.
	Aborts bool
}

// Reason is the filter that a pod does not pass.
type Reason string

// Reasons, in the order in which they are tried.
const (
	ReasonUnschedulable Reason = "Unschedulable" // the node is cordoned
	ReasonNodeAffinity  Reason = "NodeAffinity"  // nodeSelector or node affinity
	ReasonTaint         Reason = "Taint"
	ReasonPods          Reason = "Pods" // host ports, affinity to pods
	ReasonResources     Reason = "Resources"
	ReasonClaimNode     Reason = "ClaimNode" // a claim is allocated elsewhere
	ReasonDevices       Reason = "Devices"
)
