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

// IntentID is the ID of a scale-up that may not have been sent to EKS yet.
const IntentID = "intent"

// wantedPrefix begins the ID of a size that AWS has, without an update to follow.
const wantedPrefix = "size-"

// WantedID is the ID of a scale-up without an update to follow.
func WantedID(e v1alpha1.InFlight) string {
	return fmt.Sprintf("%s%d-at-%d", wantedPrefix, e.Target, e.Since.Unix())
}

// UpdateOf is the ID of our last update of the group at EKS. Empty: none.
func UpdateOf(group *v1alpha1.GPUNodeGroup) string {
	id := ""
	for _, e := range group.Status.InFlight {
		if e.Target > 0 && e.ID != "" && e.ID != IntentID && !strings.HasPrefix(e.ID, wantedPrefix) {
			id = e.ID
		}
	}
	return id
}

const (
	// pollUpdate and pollNodes are how often EKS is asked while an update or nodes are pending.
	pollUpdate = 15 * time.Second
	pollNodes  = 30 * time.Second
	// lowered is how long a desired size must be too low to count as lowered by another client. The Node of a machine that
	// ended stays for a while.
	lowered = 2 * time.Minute
	// maxReason bounds EKS's part of a message, so that the advice after it is not cut off.
	maxReason = 256
)

// direct grows a group by calls of EKS, or of EC2 Auto Scaling for a self-managed group. It never asks for a smaller size,
// because AWS would choose the machines to end. See shrinking.
type direct struct{}

func (direct) decide(s *Situation, group *view.Group, demand []scaleout.NewNode) outcome {
	g := &growing{turn: newTurn(s, group), eks: s.View.Nodegroups[group.Object.Name]}
	ups := scaleUps(group)
	if g.unavailable = unavailable(s, group); g.unavailable != "" {
		g.kept = slices.DeleteFunc(ups, func(u scaleUp) bool { return u.settled(g) })
		return g.outcome()
	}
	for _, u := range ups {
		g.follow(u)
	}
	if i := slices.IndexFunc(g.kept, func(u scaleUp) bool { return u.ID == IntentID }); i >= 0 {
		g.setSize(g.kept[i].InFlight)
	} else if demand = g.withMin(demand); len(demand) > 0 {
		g.grow(demand)
	}
	g.quiet = len(demand) == 0 && len(g.kept) == 0 && !g.updating() && g.eks.Desired >= g.group.Staying()
	return g.outcome()
}

// growing is a decision about a group of pairing direct.
type growing struct {
	turn
	eks view.Nodegroup
	// unavailable is why EKS cannot be used.
	unavailable string
	kept        []scaleUp
	calls       []Action
	// held is why a needed call is delayed.
	held string
	// quiet reports whether the group neither grows nor should, and has as many machines as AWS wants.
	quiet bool
}

// withMin adds the nodes that the group lacks to spec.min. The plan does not have them, and only the plan knows the room in a
// budget: under a budget of the whole cluster none are added.
func (g *growing) withMin(demand []scaleout.NewNode) []scaleout.NewNode {
	for _, b := range g.s.View.Budgets {
		if len(b.Namespaces) == 0 {
			return demand
		}
	}
	lacking := int(g.group.Object.Spec.Min) - g.size() - len(demand)
	return append(slices.Clone(demand), make([]scaleout.NewNode, max(lacking, 0))...)
}

// unavailable is why EKS cannot be used for the group. Then nothing is called, and no scale-up fails.
func unavailable(s *Situation, group *view.Group) string {
	if eks := group.Object.Spec.Provider.EKS; eks != nil && eks.Cluster == "" {
		return "pairing direct calls EKS, and spec.provider.eks.cluster is not set: set it, or choose pairing placeholder or observe"
	}
	n, asked := s.View.Nodegroups[group.Object.Name]
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

// service is the AWS service that has the group.
func service(group *v1alpha1.GPUNodeGroup) string {
	if group.Spec.Provider.EKS == nil {
		return "EC2 Auto Scaling"
	}
	return "EKS"
}

// atAWS names the group as AWS does.
func atAWS(group *v1alpha1.GPUNodeGroup) string {
	if eks := group.Spec.Provider.EKS; eks != nil {
		return fmt.Sprintf("node group %s of cluster %s", eks.Nodegroup, eks.Cluster)
	}
	return "Auto Scaling group " + group.Spec.Provider.AutoScalingGroup
}

// follow keeps a scale-up, drops it when it is done, or fails it.
func (g *growing) follow(u scaleUp) {
	failure := ""
	switch {
	case u.settled(g):
		if !backedOff(g.backoff, g.s.Now) {
			g.backoff = nil
		}
		return
	case u.ID == IntentID && g.eks.Desired >= int(u.Target):
		u.ID = WantedID(u.InFlight) // the call was made, by us or another client
	case u.ID == IntentID && g.eks.Refused != "":
		failure = g.eks.Refused
	case u.ID == UpdateOf(g.group.Object) && g.eks.Failed != "":
		failure = fmt.Sprintf("EKS was asked for a size of %d: %s; %s", u.Target, excerpt.Of(g.eks.Failed, maxReason), g.remedy(u.Target))
	case u.withheld() != nil:
		failure = fmt.Sprintf("node %s, which EKS was asked for, %s", u.withheld().Object.Name, u.withheld().Withheld)
	case u.ID != IntentID && !g.updating() && u.left() > 0 && g.eks.Desired < g.group.Staying()+g.coming()+u.left() && age(g.s.Now, g.eks.DesiredSince) > lowered:
		failure = fmt.Sprintf("the size was set to %d, and another client set it back to %d before %d nodes had come: let one client set the size, or choose pairing observe", u.Target, g.eks.Desired, u.left())
	}
	if failure == "" && age(g.s.Now, u.Since.Time) > g.timeout {
		if u.ID == IntentID {
			return // EKS was never asked, and the pods may be gone
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

// remedy is the advice if EKS reports why machines do not come.
func (g *growing) remedy(target int32) string {
	if g.eks.Desired < int(target) {
		return "fix that at EKS; the size is as it was, and is asked for again after a while"
	}
	return fmt.Sprintf("fix that, or if AWS has no machines, wait or declare a group with another instance type, zone or capacityType; the desired size stays %d: lower it if the nodes are not wanted any more", g.eks.Desired)
}

// updating reports whether EKS is changing the group. It makes one change at a time.
func (g *growing) updating() bool {
	return g.eks.Update != "" || g.eks.Status == "UPDATING" || g.eks.Status == "CREATING"
}

// busy reports whether the group's size cannot be changed now. During another client's update, which can take hours, the size
// of the Auto Scaling group can.
func (g *growing) busy() bool {
	others := g.eks.Status == "UPDATING" && g.eks.Update == ""
	return g.updating() && !(others && g.eks.ScalingGroup != "" && g.eks.ScalingRefused == "")
}

// wait repeats the decision when EKS may be done, and reports a wait that may be long.
func (g *growing) wait() {
	g.again = sooner(g.again, g.s.Now.Add(pollUpdate))
	if g.eks.Status != "UPDATING" || g.eks.Update != "" {
		return
	}
	g.held = fmt.Sprintf("EKS updates %s, which can take hours, and changes its size only after that: wait until the update is over", atAWS(g.group.Object))
	if g.eks.ScalingRefused != "" {
		g.held += fmt.Sprintf(", or let the controller set the size of Auto Scaling group %s meanwhile, which AWS refused: %s", g.eks.ScalingGroup, excerpt.Of(g.eks.ScalingRefused, maxReason))
	}
}

// setSize calls EKS unless it is busy.
func (g *growing) setSize(entry v1alpha1.InFlight) {
	if g.busy() {
		g.wait()
		return
	}
	g.calls = append(g.calls, setDesired{Group: g.group.Object, Entry: entry})
	g.again = sooner(g.again, g.s.Now.Add(pollUpdate))
}

// grow asks for the demanded nodes within the limits.
func (g *growing) grow(demand []scaleout.NewNode) {
	predicted := g.group.Template == nil || g.group.Template.Source == v1alpha1.SourceCatalogue
	switch {
	case backedOff(g.backoff, g.s.Now) || len(g.kept) >= v1alpha1.MaxInFlight:
		return
	case g.busy():
		g.wait()
		return
	case len(g.kept) > 0 && predicted:
		return // the first node shows whether the prediction holds
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
	wanted := g.eks.Desired >= size+n
	if wanted && g.eks.Issue != "" {
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
	if wanted {
		entry.ID = WantedID(entry)
	}
	g.kept = append(g.kept, scaleUp{InFlight: entry})
	if !wanted {
		g.setSize(entry)
	}
}

// atMax backs off if EKS has no room and the planner did not know that.
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

// size counts the nodes that the group will have.
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
	shrinking := newShrinking(g)
	shrinking.decide()
	out := g.turn.outcome(append(g.calls, shrinking.actions...)...)
	if g.unavailable != "" {
		out.again = sooner(out.again, g.s.Now.Add(pollNodes))
		out.status.NotReady, out.status.Message = v1alpha1.ReasonEKSUnavailable, g.unavailable
	}
	if g.held != "" {
		out.status.NotReady, out.status.Message = v1alpha1.ReasonEKSUpdating, g.held
	}
	out.status.ScaleIn = shrinking.status
	for _, u := range g.kept {
		out.status.InFlight = append(out.status.InFlight, u.InFlight)
	}
	return out
}
