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

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// reasonIncomplete is that of the Event on a node that does not get through the gate.
const reasonIncomplete = "GPUNodeIncomplete"

// glitch is how long a node that is in use may be without all of its pools before it is
// reported: a plugin that publishes anew does it in several steps.
const glitch = 2 * time.Minute

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

	waiting map[types.UID]waiting
}

// waiting is a node that lacks something.
type waiting struct {
	since time.Time
	said  string
}

// Act opens the nodes that are complete, or need not be any more, and reports those that are overdue, once for each
// thing that they lack. again is when to look again though nothing has changed, zero for
// never. What another has changed meanwhile is left to the next look.
func (g *Gate) Act(ctx context.Context, v *view.View, now time.Time) (again time.Time, err error) {
	before := g.waiting
	g.waiting = map[types.UID]waiting{}
	var failures []error
	for _, p := range Passages(g.Driver, v) {
		if len(p.Lacks) > 0 {
			look := g.wait(ctx, p, before[p.Node.UID], now)
			if !look.IsZero() && (again.IsZero() || look.Before(again)) {
				again = look
			}
			continue
		}
		if p.Closed() {
			g.waive(ctx, p, before[p.Node.UID], now)
			failures = append(failures, g.open(ctx, p))
		}
	}
	return again, errors.Join(failures...)
}

// wait remembers a node that lacks something, and reports it when it is overdue. It gives
// the time when that will be.
func (g *Gate) wait(ctx context.Context, p Passage, w waiting, now time.Time) (due time.Time) {
	if w.since.IsZero() {
		w.since = now
	}
	defer func() { g.waiting[p.Node.UID] = w }()
	due = p.Deadline
	if patience := w.since.Add(glitch); !p.Closed() && due.Before(patience) {
		due = patience
	}
	if now.Before(due) {
		return due
	}
	advice := "look at the events of the node, and at the pods that publish its devices"
	if p.Closed() {
		advice += "; it keeps the taint " + v1alpha1.TaintStartup + " until it is complete"
	}
	g.report(ctx, p, p.Lacks, advice, now, &w)
	return time.Time{}
}

// waive reports a node that is opened without what other drivers were to publish.
func (g *Gate) waive(ctx context.Context, p Passage, w waiting, now time.Time) {
	if len(p.Waived) == 0 {
		return
	}
	g.report(ctx, p, p.Waived, "it is opened to pods without that; new nodes are expected to be as most of the live ones are", now, &w)
	g.waiting[p.Node.UID] = w
}

// report says what a node lacks, if that was not what was said of it last.
func (g *Gate) report(ctx context.Context, p Passage, lacks []string, advice string, now time.Time, w *waiting) {
	text := strings.Join(lacks, "; ")
	if text == w.said {
		return
	}
	w.said = text
	message := sentence(p, text, advice, now)
	klog.FromContext(ctx).Info("Node is incomplete", "node", klog.KObj(p.Node), "group", p.Group, "report", message)
	g.Recorder.Event(p.Node, corev1.EventTypeWarning, reasonIncomplete, message)
}

func sentence(p Passage, lacks, advice string, now time.Time) string {
	promised := "what a node with the startup taint has to"
	if p.Group != "" {
		promised = "what nodes of GPUNodeGroup " + p.Group + " do"
	}
	age := now.Sub(p.Node.CreationTimestamp.Time).Round(time.Second)
	frame := fmt.Sprintf("%s after its creation, the node does not offer %s: %%s: %s", age, promised, advice)
	return fmt.Sprintf(frame, excerpt.Of(lacks, excerpt.MaxEvent-len(frame)+len("%s")))
}

// open removes the startup taint, and nothing else: the patch tests that what it removes is
// what was seen.
func (g *Gate) open(ctx context.Context, p Passage) error {
	patch, err := removal(p.Node.Spec.Taints)
	if err != nil {
		return fmt.Errorf("remove the startup taint of node %s: %w", p.Node.Name, err)
	}
	log := klog.FromContext(ctx)
	node := &corev1.Node{}
	node.Name = p.Node.Name
	switch err := g.Client.Patch(ctx, node, client.RawPatch(types.JSONPatchType, patch)); {
	case err == nil:
		log.Info("Node is complete; removed the startup taint", "node", klog.KObj(p.Node), "group", p.Group)
		return nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err):
		// A test that fails is Invalid to the API server.
		log.V(2).Info("Node changed before its startup taint was removed; checking it again", "node", klog.KObj(p.Node), "err", err)
		return nil
	default:
		return fmt.Errorf("remove the startup taint of node %s, which is complete: %w", p.Node.Name, err)
	}
}
