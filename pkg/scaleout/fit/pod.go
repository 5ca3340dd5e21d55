package fit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// PodClaim is a claim as a pod names it.
type PodClaim struct {
	// Name is its name in the pod's spec.resourceClaims.
	Name string
	// Claim is the object, as it exists or as its template will create it.
	Claim *resourceapi.ResourceClaim
	// Shared reports whether other pods may name the claim.
	Shared bool
	// Placed reports whether the claim is allocated, in the API or by an earlier placement. The pod then takes no
	// devices for it, and the caller places the pod on the claim's node.
	Placed bool
}

// Pod stands for all pods that are alike, with their claims.
type Pod struct {
	kind   string
	object *corev1.Pod

	tolerations  []corev1.Toleration
	nodeSelector map[string]string
	nodeTerms    []corev1.NodeSelectorTerm
	nodeAffinity nodeaffinity.RequiredNodeAffinity

	requests []request
	ports    []hostPort
	// self is what the affinity of other pods can select; nil if no pod has affinities.
	self                   *neighbor
	affinity, antiAffinity []term

	// claims are to be allocated, bound are allocated in the API.
	claims []PodClaim
	bound  []boundClaim
	// extended are the requests for devices, by extended resource.
	extended map[corev1.ResourceName][]resourceapi.DeviceRequest
	// demands caches what is to be allocated on nodes with these traits.
	demands map[*traits]*demand
}

// boundClaim is a claim that is allocated for certain nodes.
type boundClaim struct {
	name     string
	terms    []corev1.NodeSelectorTerm
	selector *nodeaffinity.NodeSelector
}

// Pod reads a pod. The error is a sentence for the pod's owner: a class does not exist, an expression does not compile
// or costs too much, or a constraint on other nodes is not supported.
//
// Required affinity and anti-affinity to pods are supported for the topology key kubernetes.io/hostname. Required
// spread constraints are not supported. Volumes are ignored: a pod whose volume is in another zone than the node counts
// as fitting.
func (c *Cluster) Pod(pod *corev1.Pod, claims []PodClaim) (*Pod, error) {
	p := &Pod{
		object:       pod,
		tolerations:  pod.Spec.Tolerations,
		nodeSelector: pod.Spec.NodeSelector,
		ports:        portsOf(pod),
		demands:      map[*traits]*demand{},
	}
	for _, read := range []func() error{
		func() error { return c.readPlacement(p) },
		func() error { return c.readNeighbors(p) },
		func() error { return c.readResources(p) },
		func() error { return c.readClaims(p, claims) },
	} {
		if err := read(); err != nil {
			c.words.tooLate()
			return nil, err
		}
	}
	if c.words.tooLate() {
		return nil, errors.New("the pod was read after machines were made, and asks for what does not distinguish them: read all pods first")
	}
	key := string(p.signature())
	if known := c.pods[key]; known != nil && !c.separate {
		return known, nil
	}
	sum := sha256.Sum256([]byte(key))
	p.kind = hex.EncodeToString(sum[:8])
	c.pods[key] = p
	return p, nil
}

// readPlacement reads the pod's conditions on nodes.
func (c *Cluster) readPlacement(p *Pod) error {
	spec := &p.object.Spec
	p.nodeAffinity = nodeaffinity.GetRequiredNodeAffinity(p.object)
	for key, value := range spec.NodeSelector {
		c.words.label(key, false, value)
	}
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
		if required := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			p.nodeTerms = required.NodeSelectorTerms
			c.words.nodeSelector(required)
		}
	}
	for i := range spec.TopologySpreadConstraints {
		if t := &spec.TopologySpreadConstraints[i]; t.WhenUnsatisfiable == corev1.DoNotSchedule {
			return fmt.Errorf("not planned: the pod must be spread evenly by %q, which depends on all nodes; use whenUnsatisfiable: ScheduleAnyway, or required anti-affinity by kubernetes.io/hostname", t.TopologyKey)
		}
	}
	return nil
}

// readNeighbors reads the pod's affinity and anti-affinity to other pods.
func (c *Cluster) readNeighbors(p *Pod) error {
	c.neighbors.readTerms(p.object)
	p.self = c.neighbors.of(p.object)
	for _, kind := range []struct {
		name  string
		terms []corev1.PodAffinityTerm
		into  *[]term
	}{
		{"affinity", required(p.object), &p.affinity},
		{"anti-affinity", repelled(p.object), &p.antiAffinity},
	} {
		for i := range kind.terms {
			t, err := newTerm(p.object, &kind.terms[i])
			if err != nil {
				return fmt.Errorf("not planned: a required %s to pods is not understood: %w", kind.name, err)
			}
			*kind.into = append(*kind.into, t)
		}
	}
	return nil
}

// readResources reads the pod's requests for resources.
func (c *Cluster) readResources(p *Pod) error {
	requests := resourcehelper.PodRequests(p.object, resourcehelper.PodResourcesOptions{})
	for _, name := range sortedKeys(requests) {
		r := request{name: name, amount: amount(name, requests[name])}
		if r.amount == 0 {
			continue
		}
		r.index = c.words.resource(name)
		if class := c.classes.byResource[name]; class != nil {
			r.extended = true
			if err := c.readRequest(class.Name, nil); err != nil {
				return fmt.Errorf("extended resource %s: %w", name, err)
			}
			c.words.stand(name)
			if p.extended == nil {
				p.extended = map[corev1.ResourceName][]resourceapi.DeviceRequest{}
			}
			p.extended[name] = extendedRequests(p.object, name, class.Name)
		}
		p.requests = append(p.requests, r)
	}
	return nil
}

// readClaims reads the pod's claims.
func (c *Cluster) readClaims(p *Pod, claims []PodClaim) error {
	for _, claim := range claims {
		if claim.Claim.DeletionTimestamp != nil {
			return fmt.Errorf("claim %q is being deleted", claim.Name)
		}
		if allocation := claim.Claim.Status.Allocation; allocation != nil {
			if allocation.NodeSelector == nil {
				continue
			}
			selector, err := nodeaffinity.NewNodeSelector(allocation.NodeSelector)
			if err != nil {
				return fmt.Errorf("claim %q has a node selector that cannot be parsed: %w", claim.Name, err)
			}
			c.words.nodeSelector(allocation.NodeSelector)
			p.bound = append(p.bound, boundClaim{name: claim.Name, terms: allocation.NodeSelector.NodeSelectorTerms, selector: selector})
			continue
		}
		read, err := c.readClaim(claim.Claim)
		if err != nil {
			return fmt.Errorf("claim %q: %w", claim.Name, err)
		}
		if !claim.Placed {
			claim.Claim = read
			p.claims = append(p.claims, claim)
		}
	}
	return nil
}

// Kind is equal for pods that are alike: each fits wherever the other does. It is short, and does not depend on the
// process.
func (p *Pod) Kind() string { return p.kind }

// Claims returns the claims to allocate, with that of extended resources, and what the pod's owner calls each of them.
// The names are the same for all pods of a kind, whatever their own claims are called.
func (p *Pod) Claims() ([]*resourceapi.ResourceClaim, []string) {
	d := p.demandWithout(nil)
	return d.claims, d.names
}

// demandWithout returns the claims to allocate on a node that offers some of the extended resources itself.
func (p *Pod) demandWithout(offered map[corev1.ResourceName]bool) *demand {
	d := &demand{}
	for _, claim := range p.claims {
		d.claims = append(d.claims, claim.Claim)
		d.names = append(d.names, fmt.Sprintf("claim %q", claim.Name))
	}
	if claim, name := p.extendedClaim(offered); claim != nil {
		d.claims = append(d.claims, claim)
		d.names = append(d.names, name)
	}
	return d
}

// demand returns what the pod needs on a node with these traits. Equal demands are one pointer.
func (c *Cluster) demand(p *Pod, h *traits) *demand {
	if known := p.demands[h]; known != nil {
		return known
	}
	d := p.demandWithout(h.offers)
	var key signature
	for i, claim := range d.claims {
		key.text(d.names[i])
		key.claim(claim)
	}
	if known := c.demands[string(key)]; known != nil {
		d = known
	} else {
		c.demands[string(key)] = d
	}
	p.demands[h] = d
	return d
}

// claim adds a claim's requests and constraints, without its configuration.
func (s *signature) claim(claim *resourceapi.ResourceClaim) {
	s.message(&resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests:    claim.Spec.Devices.Requests,
		Constraints: claim.Spec.Devices.Constraints,
	}})
}

// signature is equal for pods that are alike.
func (p *Pod) signature() signature {
	s := make(signature, 0, 512)
	s.number(int64(len(p.nodeSelector)))
	for _, key := range sortedKeys(p.nodeSelector) {
		s.text(key)
		s.text(p.nodeSelector[key])
	}
	s.number(int64(len(p.nodeTerms)))
	for i := range p.nodeTerms {
		s.message(&p.nodeTerms[i])
	}
	s.tolerations(p.tolerations)
	s.number(int64(len(p.requests)))
	for _, r := range p.requests {
		s.text(string(r.name))
		s.number(r.amount)
	}
	s.number(int64(len(p.ports)))
	for _, port := range p.ports {
		s.text(port.ip)
		s.text(port.protocol)
		s.number(int64(port.port))
	}
	s.neighbor(p)
	s.claims(p)
	return s
}

// tolerations adds tolerations without their order and their seconds.
func (s *signature) tolerations(all []corev1.Toleration) {
	var each []string
	for _, t := range all {
		var one signature
		one.text(t.Key)
		one.text(string(t.Operator))
		one.text(t.Value)
		one.text(string(t.Effect))
		each = append(each, string(one))
	}
	slices.Sort(each)
	s.number(int64(len(each)))
	for _, one := range each {
		s.text(one)
	}
}

func (s *signature) neighbor(p *Pod) {
	s.flag(p.self != nil)
	if p.self == nil {
		return
	}
	s.text(p.self.namespace)
	for _, key := range slices.Sorted(maps.Keys(p.self.labels)) {
		s.text(key)
		s.text(p.self.labels[key])
	}
	s.text("")
	for _, terms := range [][]corev1.PodAffinityTerm{required(p.object), repelled(p.object)} {
		s.number(int64(len(terms)))
		for i := range terms {
			s.message(&terms[i])
		}
	}
}

func (s *signature) claims(p *Pod) {
	s.number(int64(len(p.claims)))
	for _, claim := range p.claims {
		s.text(claim.Name)
		s.flag(claim.Shared)
		if claim.Shared {
			s.text(claim.Claim.Namespace)
			s.text(claim.Claim.Name)
		}
		s.claim(claim.Claim)
	}
	s.number(int64(len(p.bound)))
	for _, bound := range p.bound {
		s.text(bound.name)
		s.message(&corev1.NodeSelector{NodeSelectorTerms: bound.terms})
	}
	s.number(int64(len(p.extended)))
	for _, name := range sortedKeys(p.extended) {
		s.text(string(name))
		for i := range p.extended[name] {
			s.message(&p.extended[name][i])
		}
	}
}
