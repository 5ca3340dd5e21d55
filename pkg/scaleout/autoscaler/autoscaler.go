// Package autoscaler reads Cluster Autoscaler's status, and matches its groups with GPUNodeGroups.
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

// Cluster Autoscaler's default ConfigMap.
const (
	Namespace  = "kube-system"
	StatusName = "cluster-autoscaler-status"
)

// Fresh is how long a status counts. Cluster Autoscaler writes it at each scan, by default every 10 s.
const Fresh = 3 * time.Minute

const (
	statusKey = "status"
	// annotationUpdated is the time of the status in all versions.
	annotationUpdated = "cluster-autoscaler.kubernetes.io/last-updated"
	// maxMessage bounds the message of a backoff.
	maxMessage = 512
	// maxStatus is the limit of a ConfigMap.
	maxStatus = 1 << 20
)

// written is the part of the status that is read, as YAML since 1.30.
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

// Status is Cluster Autoscaler's status.
type Status struct {
	// Updated is the time of the last status, or zero.
	Updated time.Time
	// Groups by Cluster Autoscaler's names.
	Groups map[string]Group
	// Problem is why the status cannot be parsed.
	Problem string
}

// Group is one group of the status.
type Group struct {
	Backoff bool
	// Code and Message are the reason of the backoff. The message begins with the code.
	Code, Message      string
	Ready, Target, Max int
	// NotStarted counts nodes that are not ready yet, or have a startup taint. Unready counts those that were given up.
	NotStarted, Unready int
}

// FlagProvision and FlagStartup are Cluster Autoscaler's timeouts for a starting node: since it was asked for, and since it
// joined. Both are 15m by default. The AWS provider ignores the tags for a timeout per group.
const (
	FlagProvision = "--max-node-provision-time"
	FlagStartup   = "--max-node-startup-time"
)

// codeTimeout is the code of a backoff after FlagProvision has passed (FailedScaleUpReason Timeout).
const codeTimeout = "timeout"

// TimedOut reports whether a node took too long to start.
func (g Group) TimedOut() bool { return g.Backoff && g.Code == codeTimeout }

// BackedOff is a sentence about the backoff.
func (g Group) BackedOff() string {
	switch {
	case g.TimedOut():
		return fmt.Sprintf("Cluster Autoscaler has waited for a node of the group as long as its flag %s says, and has backed off from the group: %s", FlagProvision, g.Message)
	case g.Message == "":
		return "Cluster Autoscaler has backed off from the group after a scale-up that failed"
	}
	return "Cluster Autoscaler has backed off from the group: " + g.Message
}

// Read reads the status from its ConfigMap. It is empty if there is none.
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

// parse parses the status. Errors are in Problem.
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
		// The text before 1.30 may be valid YAML by chance.
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

// goTime parses a time as Go prints it, maybe with a monotonic clock reading and YAML's line breaks.
func goTime(text string) (time.Time, bool) {
	text, _, _ = strings.Cut(strings.Join(strings.Fields(text), " "), " m=")
	for _, layout := range []string{"2006-01-02 15:04:05.999999999 -0700 MST", time.RFC3339Nano} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// Absent reports whether no Cluster Autoscaler has written a status.
func (a Status) Absent() bool { return a.Groups == nil }

// Counts reports whether the status is fresh.
func (a Status) Counts(now time.Time) bool {
	return !a.Updated.IsZero() && now.Sub(a.Updated) <= Fresh
}

// Of is the fresh status of a group.
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

// ownNames are Cluster Autoscaler's possible names of a group, the best first.
func ownNames(group *v1alpha1.GPUNodeGroup) []string {
	selector := group.Spec.Provider.Selector()
	if name := selector[v1alpha1.LabelEKSNodegroup]; name != "" {
		return []string{name, group.Name}
	}
	names := []string{group.Name}
	// The label's value is the group's name at providers that label their groups.
	if len(selector) == 1 {
		for _, value := range selector {
			names = append(names, value)
		}
	}
	return names
}

var uuidTail = regexp.MustCompile(`^-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// ofEKS finds a managed node group by the name of its Auto Scaling group, eks-NODEGROUP-UUID. There may be two, of two clusters
// or during a deletion. Then the one in backoff counts.
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
