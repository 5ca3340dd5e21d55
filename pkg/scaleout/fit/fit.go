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
	// Claims are all claims of the cluster: devices that are allocated to them are taken.
	Claims []*resourceapi.ResourceClaim
	// Slices are all published ones, with DeviceTaintRules applied.
	Slices []*resourceapi.ResourceSlice
	// Pods are all pods of the cluster. Their required affinity to pods decides which labels of pods distinguish kinds
	// and machines.
	Pods []*corev1.Pod
	// Selectors caches compiled expressions; nil: no cache.
	Selectors *devices.Selectors
}

// Cluster places pods on machines. It is not safe for concurrent use.
//
// All pods have to be read (Pod) before the first machine is made (Machine): machines are distinguished only by what
// pods ask for.
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
	// contents has the contents of slices by their places in memory, numbers by what they are.
	contents map[place]content
	numbers  map[string]int
	machines map[machineKey]*Machine

	// separate makes a machine for each node, for tests that compare.
	separate bool
	// scratch is a reused buffer: signatures of layouts are long.
	scratch signature
	// epochs counts the states that Shared and Commit have returned.
	epochs int
}

// New returns a cluster without pods and machines.
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

// Machine is a node in one state of use. It is immutable: placing a pod returns another. Nodes with the same answers
// for every pod are one Machine, whatever their names.
type Machine struct {
	traits    *traits
	load      load
	inventory *inventory
	// takes are devices of the network that were given to pods on this machine.
	takes  []*take
	origin *origin
	placed map[attempt]outcome
}

// origin is the first node with this machine, which stands for all of them.
type origin struct {
	object *corev1.Node
	slices []*resourceapi.ResourceSlice
	pools  []devices.PoolID
}

// machineKey is equal for machines with the same answers for every pod.
type machineKey struct {
	traits      *traits
	inventory   *inventory
	load, takes string
	// serial is unique if machines are separate.
	serial int
}

// attempt is the key of a cached placement.
type attempt struct {
	pod *Pod
	// epoch is 0 if only the machine counts.
	epoch int
}

type outcome struct {
	machine *Machine
	miss    *Miss
}

// Node is what a Machine is made of.
type Node struct {
	// Object has labels, taints and allocatable resources. If a starting node shall count as started, the caller
	// removes its startup taints.
	Object *corev1.Node
	// Slices are those of the node, and replace its slices in Facts.Slices. All of them have its name in spec.nodeName.
	// Slices of the network are in Facts.Slices only.
	Slices []*resourceapi.ResourceSlice
	// Pods are on the node, or will be in any case, such as those of DaemonSets.
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

// machine returns the one machine for all that are alike.
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

// Object is a node that stands for all nodes with this machine.
func (m *Machine) Object() *corev1.Node { return m.origin.object }

// Slices are those of Object, with those of the network that it reaches.
func (m *Machine) Slices() []*resourceapi.ResourceSlice { return m.origin.slices }

// Used is the use of the devices in Slices.
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
	// Text is a sentence with numbers. For ReasonDevices it only names the claim; pkg/scaleout/explain finds out more.
	Text string
	// Aborts reports whether the scheduler gives up on the pod on all nodes, because an expression fails at run time or
	// the search takes too long.
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
