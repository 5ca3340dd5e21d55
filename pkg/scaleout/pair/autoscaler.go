package pair

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
)

// Where Cluster Autoscaler writes its status unless it is told otherwise.
const (
	AutoscalerNamespace = "kube-system"
	AutoscalerStatus    = "cluster-autoscaler-status"
)

const (
	statusKey = "status"
	// annotationUpdated has the time of the status in all versions.
	annotationUpdated = "cluster-autoscaler.kubernetes.io/last-updated"
	// maxStatus is what a ConfigMap can hold.
	maxStatus = 1 << 20
	// statusFresh is how long a status counts. It is written once a scan, which is every 10 s
	// unless a cloud takes long to answer.
	statusFresh = 3 * time.Minute
	// eventsFresh is how long Events show that the autoscaler lives, where it writes no
	// status. Of a pod that waits, the same Event is let through once in five minutes.
	eventsFresh = 10 * time.Minute
)

// autoscalerStatus is what Cluster Autoscaler writes as YAML since 1.30, as far as it counts.
type autoscalerStatus struct {
	Time       string                 `json:"time"`
	NodeGroups []autoscalerNodeStatus `json:"nodeGroups"`
}

type autoscalerNodeStatus struct {
	Name   string `json:"name"`
	Health struct {
		NodeCounts struct {
			Registered struct {
				Ready int `json:"ready"`
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

// ReadAutoscaler reads the status of Cluster Autoscaler; nil is none. What it cannot read is
// told in Problem, and the rest counts.
func ReadAutoscaler(status *corev1.ConfigMap) Autoscaler {
	if status == nil {
		return Autoscaler{}
	}
	a := Autoscaler{Groups: map[string]AutoscalerGroup{}}
	a.Updated, _ = goTime(status.Annotations[annotationUpdated])
	text := status.Data[statusKey]
	if len(text) > maxStatus {
		a.Problem = fmt.Sprintf("key %s of ConfigMap %s/%s is %d bytes long, which is more than a ConfigMap holds",
			statusKey, status.Namespace, status.Name, len(text))
		return a
	}
	var read autoscalerStatus
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

func (g autoscalerNodeStatus) group() AutoscalerGroup {
	var parts []string
	for _, part := range []string{g.ScaleUp.BackoffInfo.ErrorCode, g.ScaleUp.BackoffInfo.ErrorMessage} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return AutoscalerGroup{
		Backoff: g.ScaleUp.Status == "Backoff",
		Message: excerpt.Of(strings.Join(parts, ": "), maxMessage),
		Ready:   g.Health.NodeCounts.Registered.Ready,
		Target:  g.Health.CloudProviderTarget,
		Max:     g.Health.MaxSize,
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

func (a Autoscaler) fresh(now time.Time) bool {
	return !a.Updated.IsZero() && age(now, a.Updated) <= statusFresh
}

// of is what the autoscaler says of a group, where it is no old news.
func (a Autoscaler) of(group *v1alpha1.GPUNodeGroup, now time.Time) (AutoscalerGroup, bool) {
	if !a.fresh(now) {
		return AutoscalerGroup{}, false
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
func (a Autoscaler) ofEKS(nodegroup string) (AutoscalerGroup, bool) {
	var found AutoscalerGroup
	var ok bool
	for name, g := range a.Groups {
		tail, is := strings.CutPrefix(name, "eks-"+nodegroup)
		if is && uuidTail.MatchString(tail) && (!ok || g.Backoff && !found.Backoff) {
			found, ok = g, true
		}
	}
	return found, ok
}

// Max is the most nodes that a group may have: the spec's limit or Cluster Autoscaler's own,
// whichever is less; nil where neither is known.
func Max(group *v1alpha1.GPUNodeGroup, autoscaler Autoscaler, now time.Time) *int {
	var limit *int
	if group.Spec.Max != nil {
		n := int(*group.Spec.Max)
		limit = &n
	}
	if modeOf(group.Spec.Pairing) != (placeholders{}) {
		return limit
	}
	if g, ok := autoscaler.of(group, now); ok && g.Max > 0 && (limit == nil || g.Max < *limit) {
		limit = &g.Max
	}
	return limit
}
