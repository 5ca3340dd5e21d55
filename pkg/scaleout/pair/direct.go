package pair

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// IntentID is the ID of what is in flight and not known to have been asked of EKS yet.
const IntentID = "intent"

// wantedPrefix begins the IDs of what EKS wants anyhow, by an update whose ID is not known.
const wantedPrefix = "size-"

// isUpdateID tells whether the ID of what is in flight is that of an update at EKS.
func isUpdateID(id string) bool {
	return id != "" && id != IntentID && !strings.HasPrefix(id, wantedPrefix)
}

// UpdateOf is the update of which EKS is asked how it went: the last one of ours, empty where
// there is none.
func UpdateOf(group *v1alpha1.GPUNodeGroup) string {
	id := ""
	for _, e := range group.Status.InFlight {
		if e.Target > 0 && isUpdateID(e.ID) {
			id = e.ID
		}
	}
	return id
}

// How often EKS is asked while something is expected of it.
const (
	pollUpdate = 15 * time.Second
	pollNodes  = 30 * time.Second
)

// lowered is how long the desired size of a group is lower than what was asked for before somebody
// is taken to have lowered it: when another machine of the group ends, its Node stays for a while.
const lowered = 2 * time.Minute

// direct makes a group grow by calls of EKS, or of EC2 Auto Scaling for a self-managed group. It
// never asks for a smaller size: which machine AWS would end is AWS's choice, and it may be one
// that works. The machines that end are named: see shrinking.
type direct struct{}

func (direct) decide(s *Situation, group *view.Group, demand []scaleout.NewNode) outcome {
	g := &growing{
		s:       s,
		group:   group,
		timeout: group.Object.ProvisionTimeout(),
		backoff: remembered(group.Object.Status.Backoff, s.Now, group.Object.ProvisionTimeout()),
	}
	g.clearBackoff()
	ups := scaleUps(group)
	if g.unavailable = unavailable(s, group); g.unavailable != "" {
		g.keep(ups)
		return g.outcome()
	}
	g.eks = s.EKS[group.Object.Name]
	for _, u := range ups {
		g.follow(u)
	}
	if i := g.intent(); i != nil {
		g.setSize(i.InFlight)
	} else if demand = g.withMin(demand); len(demand) > 0 {
		g.grow(demand)
	}
	g.quiet = len(demand) == 0 && len(g.kept) == 0 && !g.updating() && g.eks.Desired >= g.group.Staying()
	return g.outcome()
}

// withMin adds the nodes that the group lacks to have as many as spec.min, which nobody waits for.
// They are not in the plan, which alone knows what a budget has room for: under a budget of the
// cluster there are none.
func (g *growing) withMin(demand []scaleout.NewNode) []scaleout.NewNode {
	for _, b := range g.s.View.Budgets {
		if len(b.Namespaces) == 0 {
			return demand
		}
	}
	lacking := int(g.group.Object.Spec.Min) - g.size() - len(demand)
	return append(slices.Clone(demand), make([]scaleout.NewNode, max(lacking, 0))...)
}

// unavailable is why EKS cannot be counted on for the group. Then nothing is done: neither
// does the group grow, nor is anything that was begun taken for failed.
func unavailable(s *Situation, group *view.Group) string {
	if eks := group.Object.Spec.Provider.EKS; eks != nil && eks.Cluster == "" {
		return "pairing direct calls EKS, and spec.provider.eks.cluster does not name the cluster: give it, or choose pairing placeholder or observe"
	}
	n, asked := s.EKS[group.Object.Name]
	switch {
	case !asked:
		return fmt.Sprintf("%s was not asked about %s: see whether the controller has an AWS region and credentials by IRSA or Pod Identity", service(group.Object), atAWS(group.Object))
	case n.Err != nil:
		return n.Err.Error()
	}
	switch n.Status {
	case "", "ACTIVE", "DEGRADED", "UPDATING", "CREATING":
		return ""
	}
	return fmt.Sprintf("%s is %s at %s: see what is wrong with it there", atAWS(group.Object), n.Status, service(group.Object))
}

// service is the one of AWS that has the group.
func service(group *v1alpha1.GPUNodeGroup) string {
	if group.Spec.Provider.EKS == nil {
		return "EC2 Auto Scaling"
	}
	return "EKS"
}

// atAWS is what the group is called there.
func atAWS(group *v1alpha1.GPUNodeGroup) string {
	if eks := group.Spec.Provider.EKS; eks != nil {
		return fmt.Sprintf("node group %s of cluster %s", eks.Nodegroup, eks.Cluster)
	}
	return "Auto Scaling group " + group.Spec.Provider.AutoScalingGroup
}

// growing is one decision about one group.
type growing struct {
	s           *Situation
	group       *view.Group
	eks         view.Nodegroup
	unavailable string
	timeout     time.Duration

	backoff *v1alpha1.Backoff
	// failed tells that the backoff is of now.
	failed bool
	kept   []scaleUp
	calls  []Action
	again  time.Time
	// held is why nothing is asked for now though it should be.
	held string
	// quiet tells that the group neither grows nor should, and that its machines are as many as
	// AWS wants.
	quiet bool
}

// clearBackoff ends a backoff when a node has been completed since it began.
func (g *growing) clearBackoff() {
	if g.backoff == nil {
		return
	}
	if succeeded(g.group, g.backoff, g.timeout) {
		g.backoff = nil
	}
}

// keep keeps what is in flight, but for what has come.
func (g *growing) keep(ups []scaleUp) {
	for _, u := range ups {
		if !u.settled(g) {
			g.kept = append(g.kept, u)
		}
	}
}

// follow keeps a scale-up, drops it because it is done, or takes it for failed.
func (g *growing) follow(u scaleUp) {
	failure := ""
	switch {
	case u.settled(g):
		if g.backoff != nil && !backedOff(g.backoff, g.s.Now) {
			g.backoff = nil
		}
		return
	case u.ID == IntentID && g.eks.Desired >= int(u.Target):
		// The call was made, or somebody else has made it.
		u.ID = WantedID(u.InFlight)
	case u.ID == IntentID && g.eks.Refused != "":
		failure = g.eks.Refused
	case u.ID == UpdateOf(g.group.Object) && g.eks.Failed != "":
		failure = fmt.Sprintf("EKS was asked for a size of %d: %s; %s", u.Target, excerpt.Of(g.eks.Failed, maxReason), g.remedy(u.Target))
	case u.withheld() != nil:
		failure = fmt.Sprintf("node %s, which EKS was asked for, %s", u.withheld().Object.Name, u.withheld().Withheld)
	case u.ID != IntentID && !g.updating() && u.left() > 0 && g.eks.Desired < g.group.Staying()+g.coming()+u.left() && age(g.s.Now, g.eks.DesiredSince) > lowered:
		failure = fmt.Sprintf("the size was set to %d, and somebody has set it back to %d before %d nodes had come: let one alone set the size, or choose pairing observe", u.Target, g.eks.Desired, u.left())
	}
	if failure == "" && age(g.s.Now, u.Since.Time) > g.timeout {
		if u.ID == IntentID {
			// EKS was never asked, and whoever waited may have gone: who still does says so again.
			return
		}
		failure = u.expiry(g)
	}
	if failure != "" {
		g.fail(u.reason(), failure)
		return
	}
	g.kept = append(g.kept, u)
	g.again = sooner(g.again, u.Since.Add(g.timeout+time.Second))
	if u.left() > 0 {
		g.again = sooner(g.again, g.s.Now.Add(pollNodes))
	}
}

// maxReason is how much a message has of what EKS says, so that what to do is not cut off.
const maxReason = 256

// remedy is what to do when EKS says why machines do not come.
func (g *growing) remedy(target int32) string {
	if g.eks.Desired < int(target) {
		return "mend that at EKS; the size is as it was, and is asked for again after a while"
	}
	return fmt.Sprintf("mend that, or where AWS has no machines, wait or declare a group with another instance type, zone or capacityType; the desired size stays %d: lower it if they are not wanted any more", g.eks.Desired)
}

// WantedID is the ID of what AWS wants by an update that is not known, or by none.
func WantedID(e v1alpha1.InFlight) string {
	return fmt.Sprintf("%s%d-at-%d", wantedPrefix, e.Target, e.Since.Unix())
}

func (g *growing) fail(reason, message string) {
	g.backoff = fail(g.backoff, g.s.Now, reason, message)
	g.failed = true
}

// updating tells that EKS changes the group already. It does one thing at a time.
func (g *growing) updating() bool {
	return g.eks.Update != "" || g.eks.Status == "UPDATING" || g.eks.Status == "CREATING"
}

// busy tells that the group's size cannot be changed now. While EKS does something else than what
// it was asked for here, which can take hours, that of the Auto Scaling group can.
func (g *growing) busy() bool {
	others := g.eks.Status == "UPDATING" && g.eks.Update == ""
	return g.updating() && !(others && g.eks.ScalingGroup != "" && g.eks.ScalingRefused == "")
}

// wait has it decided again when EKS may be done, and says what is waited for if it may take long.
func (g *growing) wait() {
	g.again = sooner(g.again, g.s.Now.Add(pollUpdate))
	if g.eks.Status != "UPDATING" || g.eks.Update != "" {
		return
	}
	g.held = fmt.Sprintf("EKS updates %s, which can take hours, and changes its size only after that: wait until the update is over", atAWS(g.group.Object))
	if g.eks.ScalingRefused != "" {
		g.held += fmt.Sprintf(", or let the controller set the size of Auto Scaling group %s meanwhile, where it was refused: %s", g.eks.ScalingGroup, excerpt.Of(g.eks.ScalingRefused, maxReason))
	}
}

// intent is what was to be asked for, and was not as far as anyone knows.
func (g *growing) intent() *scaleUp {
	for i := range g.kept {
		if g.kept[i].ID == IntentID {
			return &g.kept[i]
		}
	}
	return nil
}

// setSize calls EKS, once it has nothing else to do.
func (g *growing) setSize(entry v1alpha1.InFlight) {
	if g.busy() {
		g.wait()
		return
	}
	g.calls = append(g.calls, setDesired{Group: g.group.Object, Entry: entry})
	g.again = sooner(g.again, g.s.Now.Add(pollUpdate))
}

// grow asks for the nodes that are demanded, as far as the limits let it.
func (g *growing) grow(demand []scaleout.NewNode) {
	switch {
	case backedOff(g.backoff, g.s.Now) || len(g.kept) >= v1alpha1.MaxInFlight:
		return
	case g.busy():
		g.wait()
		return
	case len(g.kept) > 0 && g.predicted():
		// The first node shows whether the prediction holds. Another could be as wrong.
		return
	}
	size := g.size()
	n := min(len(demand), g.eks.Max-size)
	if limit := g.group.Object.Spec.Max; limit != nil {
		n = min(n, int(*limit)-size)
	}
	if n <= 0 {
		g.atMax()
		return
	}
	if g.eks.Desired >= size+n && g.eks.Issue != "" {
		g.fail(v1alpha1.ReasonScaleUpFailed, fmt.Sprintf("EKS has been asked for %d nodes already, and %d have come: %s; %s",
			g.eks.Desired, len(g.group.Nodes), excerpt.Of(g.eks.Issue, maxReason), g.remedy(int32(g.eks.Desired))))
		return
	}
	entry := v1alpha1.InFlight{
		ID:     IntentID,
		Kind:   firstKind(demand[0].Kinds),
		Nodes:  int32(n),
		Target: int32(max(g.eks.Desired, size+n)),
		Since:  metav1.NewTime(g.s.Now.Truncate(time.Second)),
	}
	if g.eks.Desired >= size+n {
		entry.ID = WantedID(entry)
	}
	g.kept = append(g.kept, scaleUp{InFlight: entry})
	if entry.ID == IntentID {
		g.setSize(entry)
	}
}

// atMax leaves the group to others for a while when EKS has no room and the planner did not
// know that.
func (g *growing) atMax() {
	if limit := g.group.Object.Spec.Max; limit != nil && int(*limit) <= g.eks.Max {
		return
	}
	if g.updating() {
		g.wait() // nodes that are being replaced count, too
		return
	}
	g.fail(v1alpha1.ReasonScaleUpFailed, fmt.Sprintf("the group has %d nodes, or will have, and its maxSize at %s is %d: raise maxSize", len(g.group.Nodes)+g.coming(), service(g.group.Object), g.eks.Max))
}

// predicted tells that nobody has seen a node of the group yet.
func (g *growing) predicted() bool {
	return g.group.Template == nil || g.group.Template.Source == v1alpha1.SourceCatalogue
}

// size counts the nodes that there will be.
func (g *growing) size() int { return g.group.SizeWith(g.coming(), g.eks.Desired) }

// coming counts the nodes that were asked for and have not come.
func (g *growing) coming() int {
	n := 0
	for _, u := range g.kept {
		n += u.left()
	}
	return n
}

func (g *growing) outcome() outcome {
	out := outcome{again: g.again}
	if backedOff(g.backoff, g.s.Now) {
		out.again = sooner(out.again, g.backoff.Until.Time)
	}
	if g.unavailable != "" {
		out.again = sooner(out.again, g.s.Now.Add(pollNodes))
		out.status.NotReady, out.status.Message = v1alpha1.ReasonEKSUnavailable, g.unavailable
	}
	if g.held != "" {
		out.status.NotReady, out.status.Message = v1alpha1.ReasonEKSUpdating, g.held
	}
	shrinking := newShrinking(g)
	shrinking.decide()
	out.again = sooner(out.again, shrinking.again)
	out.status.ScaleIn = shrinking.status
	if g.failed {
		out.actions = append(out.actions, setBackoff{Group: g.group.Object, Backoff: *g.backoff})
	}
	out.actions = append(out.actions, g.calls...)
	out.actions = append(out.actions, shrinking.actions...)
	out.status.Backoff = g.backoff
	for _, u := range g.kept {
		out.status.InFlight = append(out.status.InFlight, u.InFlight)
	}
	return out
}
