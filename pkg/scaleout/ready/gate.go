package ready

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// reasonIncomplete is that of the Event on a node that does not get through the gate.
const reasonIncomplete = "GPUNodeIncomplete"

// republishGrace is how long a node that is in use may be without all of its pools before it is
// reported: a plugin that publishes anew does it in several steps.
const republishGrace = 2 * time.Minute

// Recorder tells people, as record.EventRecorder does.
type Recorder interface {
	Event(object runtime.Object, eventtype, reason, message string)
}

// Gate opens nodes to pods. What it keeps only saves it from repeating itself: one that is
// new reports once more what the last one did. It is not safe for concurrent use.
type Gate struct {
	// Driver is our driver's name.
	Driver   string
	Client   client.Client
	Recorder Recorder

	incomplete map[types.UID]incompleteNode
	stuck      []Stuck
}

// Stuck are the nodes that kept their startup taint for too long when Act looked last.
func (g *Gate) Stuck() []Stuck { return g.stuck }

// incompleteNode is a node that lacks something.
type incompleteNode struct {
	since time.Time
	// reported is what the last Event said that it lacks, and what to do.
	reported string
}

// Act opens the nodes that are complete, or need not be any more, and reports those that are overdue, once for each
// thing that they lack. again is when to look again though nothing has changed, zero for
// never. What another has changed meanwhile is left to the next look.
func (g *Gate) Act(ctx context.Context, v *view.View, now time.Time) (again time.Time, err error) {
	before := g.incomplete
	g.incomplete, g.stuck = map[types.UID]incompleteNode{}, nil
	var failures []error
	for _, c := range candidates(g.Driver, v) {
		if len(c.Lacks) > 0 {
			look := g.wait(ctx, c, before[c.Node.UID], now)
			if !look.IsZero() && (again.IsZero() || look.Before(again)) {
				again = look
			}
			continue
		}
		if c.Closed() {
			g.waive(ctx, c, before[c.Node.UID], now)
			failures = append(failures, g.open(ctx, c))
		}
	}
	return again, errors.Join(failures...)
}

// wait remembers a node that lacks something, and reports it when it is overdue. It gives
// the time when that will be.
func (g *Gate) wait(ctx context.Context, c candidate, w incompleteNode, now time.Time) (due time.Time) {
	if w.since.IsZero() {
		w.since = now
	}
	defer func() { g.incomplete[c.Node.UID] = w }()
	due = c.Deadline
	if named := c.Node.CreationTimestamp.Add(keptOffAfter); len(c.KeptOff) > 0 && named.Before(due) {
		due = named
	}
	if patience := w.since.Add(republishGrace); !c.Closed() && due.Before(patience) {
		due = patience
	}
	if now.Before(due) {
		return due
	}
	advice := c.advice()
	if c.Closed() {
		g.stuck = append(g.stuck, Stuck{Node: c.Node.Name, Group: c.Group, Reason: c.stuckReason(),
			Message: fmt.Sprintf("Node %s lacks %s: %s.", c.Node.Name, strings.Join(c.Lacks, "; "), advice)})
	}
	g.report(ctx, c, c.Lacks, advice, now, &w)
	if now.Before(c.Deadline) {
		return c.Deadline // it has lacked the rest for too long, too, by then
	}
	return time.Time{}
}

// waive reports a node that is opened without what other drivers were to publish.
func (g *Gate) waive(ctx context.Context, c candidate, w incompleteNode, now time.Time) {
	if len(c.Waived) == 0 {
		return
	}
	g.report(ctx, c, c.Waived, "its startup taint is removed without that; new nodes are expected to be like most of the live ones", now, &w)
	g.incomplete[c.Node.UID] = w
}

// report says what a node lacks, if that was not what was said of it last.
func (g *Gate) report(ctx context.Context, c candidate, lacks []string, advice string, now time.Time, w *incompleteNode) {
	text := strings.Join(lacks, "; ")
	if text+advice == w.reported {
		return
	}
	w.reported = text + advice
	message := sentence(c, text, advice, now)
	klog.FromContext(ctx).Info("Node is incomplete", "node", klog.KObj(c.Node), "group", c.Group, "report", message)
	g.Recorder.Event(c.Node, corev1.EventTypeWarning, reasonIncomplete, message)
}

func sentence(c candidate, lacks, advice string, now time.Time) string {
	promised := "removes its startup taint"
	if c.Group != "" {
		promised = "nodes of GPUNodeGroup " + c.Group + " offer"
	}
	age := now.Sub(c.Node.CreationTimestamp.Time).Round(time.Second)
	frame := fmt.Sprintf("%s after its creation, the node lacks what %s: %%s: %s", age, promised, advice)
	return fmt.Sprintf(frame, excerpt.Of(lacks, excerpt.MaxEvent-len(frame)+len("%s")))
}

// open removes the startup taint, and nothing else: the patch tests that what it removes is
// what was seen.
func (g *Gate) open(ctx context.Context, c candidate) error {
	patch, err := removal(c.Node.Spec.Taints)
	if err != nil {
		return fmt.Errorf("remove the startup taint of node %s: %w", c.Node.Name, err)
	}
	log := klog.FromContext(ctx)
	node := &corev1.Node{}
	node.Name = c.Node.Name
	switch err := g.Client.Patch(ctx, node, client.RawPatch(types.JSONPatchType, patch)); {
	case err == nil:
		log.Info("Node is complete; removed the startup taint", "node", klog.KObj(c.Node), "group", c.Group)
		return nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err):
		// A test that fails is Invalid to the API server.
		log.V(2).Info("Node changed before its startup taint was removed; checking it again", "node", klog.KObj(c.Node), "err", err)
		return nil
	default:
		return fmt.Errorf("remove the startup taint of node %s, which is complete: %w", c.Node.Name, err)
	}
}
