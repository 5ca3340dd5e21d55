// Package autoscaler reads what Cluster Autoscaler says of node groups, in the status that it
// writes into a ConfigMap, and tells which of its groups is which of ours. It writes nothing, and
// decides nothing.
package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
)

// Where Cluster Autoscaler writes its status unless it is told otherwise.
const (
	Namespace  = "kube-system"
	StatusName = "cluster-autoscaler-status"
)

// Fresh is how long a status counts. It is written once a scan, which is every 10 s unless a
// cloud takes long to answer.
const Fresh = 3 * time.Minute

const (
	statusKey = "status"
	// annotationUpdated has the time of the status in all versions.
	annotationUpdated = "cluster-autoscaler.kubernetes.io/last-updated"
	// maxMessage is how many characters are kept of why a group is in backoff.
	maxMessage = 512
	// maxStatus is what a ConfigMap can hold.
	maxStatus = 1 << 20
)

// written is what Cluster Autoscaler writes as YAML since 1.30, as far as it counts.
type written struct {
	Time       string         `json:"time"`
	NodeGroups []writtenGroup `json:"nodeGroups"`
}

type writtenGroup struct {
	Name   string `json:"name"`
	Health struct {
		NodeCounts struct {
			Registered struct {
				Ready      int `json:"ready"`
				NotStarted int `json:"notStarted"`
				Unready    struct {
					Total int `json:"total"`
				} `json:"unready"`
			} `json:"registered"`
		} `json:"nodeCounts"`
		CloudProviderTarget int `json:"cloudProviderTarget"`
		MaxSize             int `json:"maxSize"`
	} `json:"health"`
	ScaleUp struct {
		Status      string `json:"status"`
		BackoffInfo struct {
			ErrorCode    string `json:"errorCode"`
			ErrorMessage string `json:"errorMessage"`
		} `json:"backoffInfo"`
	} `json:"scaleUp"`
}

// Status is what Cluster Autoscaler's status says.
type Status struct {
	// Updated is when it last wrote; zero where it never did.
	Updated time.Time
	// Groups by the autoscaler's own names.
	Groups map[string]Group
	// Problem is a sentence about a status that cannot be read.
	Problem string
}

// Group is one group of the status.
type Group struct {
	Backoff bool
	// Code and Message are why. The message begins with the code.
	Code, Message      string
	Ready, Target, Max int
	// NotStarted are nodes that have yet to become ready, or have a startup taint; Unready are those
	// that were given up.
	NotStarted, Unready int
}

// FlagProvision and FlagStartup are those by which Cluster Autoscaler is told how long to wait for a
// node: until it has started, since it was asked for, and since it joined the cluster. Both are 15m
// by default. The AWS provider does not read the tags by which a group could have its own.
const (
	FlagProvision = "--max-node-provision-time"
	FlagStartup   = "--max-node-startup-time"
)

// FlagNewPods is how old a pod has to be before Cluster Autoscaler adds a node for it, by default 0s.
const FlagNewPods = "--new-pod-scale-up-delay"

// codeTimeout is the code of a backoff after FlagProvision has passed (FailedScaleUpReason Timeout).
const codeTimeout = "timeout"

// TimedOut tells that the backoff is because a node took too long to start.
func (g Group) TimedOut() bool { return g.Backoff && g.Code == codeTimeout }

// BackedOff says that Cluster Autoscaler has backed off from the group, and why.
func (g Group) BackedOff() string {
	switch {
	case g.TimedOut():
		return fmt.Sprintf("Cluster Autoscaler has waited for a node of the group as long as its flag %s says, and has backed off from the group: %s", FlagProvision, g.Message)
	case g.Message == "":
		return "Cluster Autoscaler has backed off from the group after a scale-up that failed"
	}
	return "Cluster Autoscaler has backed off from the group: " + g.Message
}

// Read reads the status from its ConfigMap. Where there is none, it is empty. The error is the API
// server's.
func Read(ctx context.Context, reader client.Reader, name types.NamespacedName) (Status, error) {
	var written corev1.ConfigMap
	err := reader.Get(ctx, name, &written)
	if apierrors.IsNotFound(err) {
		return Status{}, nil
	}
	if err != nil {
		return Status{}, fmt.Errorf("read the status of Cluster Autoscaler in ConfigMap %s: %w", name, err)
	}
	return parse(&written), nil
}

// parse reads the status. What it cannot read is told in Problem, and the rest counts.
func parse(status *corev1.ConfigMap) Status {
	a := Status{Groups: map[string]Group{}}
	a.Updated, _ = goTime(status.Annotations[annotationUpdated])
	text := status.Data[statusKey]
	if len(text) > maxStatus {
		a.Problem = fmt.Sprintf("key %s of ConfigMap %s/%s is %d bytes long, which is more than a ConfigMap holds",
			statusKey, status.Namespace, status.Name, len(text))
		return a
	}
	var read written
	err := yaml.Unmarshal([]byte(text), &read)
	if err == nil && text != "" && read.Time == "" {
		// The text of before 1.30 is YAML by chance, at times.
		err = errors.New("it has no time")
	}
	if err != nil {
		a.Problem = fmt.Sprintf("key %s of ConfigMap %s/%s is not the YAML that Cluster Autoscaler writes since 1.30: %s",
			statusKey, status.Namespace, status.Name, excerpt.Of(err.Error(), 200))
		return a
	}
	if t, ok := goTime(read.Time); ok && t.After(a.Updated) {
		a.Updated = t
	}
	for _, g := range read.NodeGroups {
		a.Groups[g.Name] = g.group()
	}
	return a
}

func (g writtenGroup) group() Group {
	var parts []string
	for _, part := range []string{g.ScaleUp.BackoffInfo.ErrorCode, g.ScaleUp.BackoffInfo.ErrorMessage} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return Group{
		Backoff:    g.ScaleUp.Status == "Backoff",
		Code:       g.ScaleUp.BackoffInfo.ErrorCode,
		Message:    excerpt.Of(strings.Join(parts, ": "), maxMessage),
		Ready:      g.Health.NodeCounts.Registered.Ready,
		NotStarted: g.Health.NodeCounts.Registered.NotStarted,
		Unready:    g.Health.NodeCounts.Registered.Unready.Total,
		Target:     g.Health.CloudProviderTarget,
		Max:        g.Health.MaxSize,
	}
}

// goTime reads a time as Go prints it, which is how Cluster Autoscaler writes it: at times
// with the reading of its monotonic clock, and wrapped where YAML breaks lines.
func goTime(text string) (time.Time, bool) {
	text, _, _ = strings.Cut(strings.Join(strings.Fields(text), " "), " m=")
	for _, layout := range []string{"2006-01-02 15:04:05.999999999 -0700 MST", time.RFC3339Nano} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// Absent tells that no Cluster Autoscaler has written a status.
func (a Status) Absent() bool { return a.Groups == nil }

// Counts tells whether the status is no old news.
func (a Status) Counts(now time.Time) bool {
	return !a.Updated.IsZero() && now.Sub(a.Updated) <= Fresh
}

// Of is what the autoscaler says of a group, where it is no old news.
func (a Status) Of(group *v1alpha1.GPUNodeGroup, now time.Time) (Group, bool) {
	if !a.Counts(now) {
		return Group{}, false
	}
	names := ownNames(group)
	for _, name := range names {
		if g, ok := a.Groups[name]; ok {
			return g, true
		}
	}
	return a.ofEKS(names[0])
}

// ownNames are those by which an autoscaler may know a group, the surest first.
func ownNames(group *v1alpha1.GPUNodeGroup) []string {
	selector := group.Spec.Provider.Selector()
	if name := selector[v1alpha1.LabelEKSNodegroup]; name != "" {
		return []string{name, group.Name}
	}
	names := []string{group.Name}
	// Providers that have labels for groups have the group's name as their value.
	if len(selector) == 1 {
		for _, value := range selector {
			names = append(names, value)
		}
	}
	return names
}

var uuidTail = regexp.MustCompile(`^-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// ofEKS finds a managed node group by the name that EKS gives to its Auto Scaling group, which
// is eks-NODEGROUP-UUID. Two of them are of two clusters, or one is being deleted: neither
// is told from the other, so the one that backs off counts.
func (a Status) ofEKS(nodegroup string) (Group, bool) {
	var found Group
	var ok bool
	for name, g := range a.Groups {
		tail, is := strings.CutPrefix(name, "eks-"+nodegroup)
		if is && uuidTail.MatchString(tail) && (!ok || g.Backoff && !found.Backoff) {
			found, ok = g, true
		}
	}
	return found, ok
}
