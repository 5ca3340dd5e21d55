package view

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
)

// Workload replaces its pods by pods that are alike.
type Workload struct {
	Namespace string
	// Name has the kind, such as CronJob/train.
	Name string
	// Asks is the same for pods that ask the same of a node.
	Asks string
}

// WorkloadOf is the workload that a pod is of, by the names in the pod alone: Jobs and ReplicaSets come
// and go with their pods. Nothing but names is known of what made these.
func WorkloadOf(pod *corev1.Pod) Workload {
	return Workload{Namespace: pod.Namespace, Name: workloadName(pod), Asks: asks(&pod.Spec)}
}

// ofCronJob is the name of a CronJob's Job: its schedule in minutes since 1970 is added (getJobName in
// pkg/controller/cronjob/utils.go of Kubernetes), which has had eight digits since 1989.
var ofCronJob = regexp.MustCompile(`^(.+)-[0-9]{8}$`)

// workloadName is the kind and the name without what is generated for each pod. Pods of a StatefulSet, which
// have a generateName as well, are apart: so are their volumes.
func workloadName(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return "Pod/" + pod.Name
	}
	kind, name := owner.Kind, pod.Name
	if pod.GenerateName != "" && kind != "StatefulSet" {
		name = strings.TrimSuffix(pod.GenerateName, "-")
	}
	switch kind {
	case "ReplicaSet":
		if hash := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; hash != "" {
			kind, name = "Deployment", strings.TrimSuffix(name, "-"+hash)
		}
	case "Job":
		if cron := ofCronJob.FindStringSubmatch(owner.Name); cron != nil {
			kind, name = "CronJob", cron[1]+strings.TrimPrefix(name, owner.Name)
		}
	}
	return kind + "/" + name
}

// asks is a hash of what does not differ between pods of one template. Affinity to pods does: the API
// server writes the values of matchLabelKeys into it.
func asks(spec *corev1.PodSpec) string {
	asked := corev1.PodSpec{
		NodeSelector:   spec.NodeSelector,
		Tolerations:    spec.Tolerations,
		ResourceClaims: spec.ResourceClaims,
		SchedulerName:  spec.SchedulerName,
	}
	if spec.Affinity != nil {
		asked.Affinity = &corev1.Affinity{NodeAffinity: spec.Affinity.NodeAffinity}
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			asked.Containers = append(asked.Containers, corev1.Container{Name: containers[i].Name, Resources: containers[i].Resources})
		}
	}
	wire, err := asked.Marshal()
	if err != nil { // the generated code has none
		wire = []byte(err.Error())
	}
	sum := sha256.Sum256(wire)
	return hex.EncodeToString(sum[:8])
}

// WorkloadIn is the workload of an entry of a group's status.
func WorkloadIn(entry *v1alpha1.UnusedBy) Workload {
	return Workload{Namespace: entry.Namespace, Name: entry.Workload, Asks: entry.Asks}
}

// unusedWorkloads are those that left nodes unused, by namespace: few namespaces have any.
type unusedWorkloads map[string]map[Workload]*v1alpha1.UnusedBy

func unusedBy(groups []v1alpha1.GPUNodeGroup) unusedWorkloads {
	found := unusedWorkloads{}
	for i := range groups {
		entries := groups[i].Status.UnusedBy
		for j := range entries {
			entry := &entries[j]
			if found[entry.Namespace] == nil {
				found[entry.Namespace] = map[Workload]*v1alpha1.UnusedBy{}
			}
			found[entry.Namespace][WorkloadIn(entry)] = entry
		}
	}
	return found
}

// hold is why no node is asked for, because one had room in vain for an earlier pod of the pod's workload; empty: none
// had, or another is due. Earlier pods remember it themselves.
func (u unusedWorkloads) hold(pod *corev1.Pod, now time.Time) string {
	if u[pod.Namespace] == nil {
		return ""
	}
	entry := u[pod.Namespace][WorkloadOf(pod)]
	if entry == nil || pod.CreationTimestamp.Before(&entry.Since) || !now.Before(entry.Until.Time) || entry.Until.Sub(now) > unusedMost {
		return ""
	}
	return excerpt.Of(fmt.Sprintf("a node had room for an earlier pod of %s for %s, and the scheduler did not put it there; it said: %s: mend that; another node is asked for at %s",
		entry.Workload, unusedAfter, entry.Message, entry.Until.UTC().Format(time.RFC3339)), excerpt.MaxEvent)
}

const (
	// maxMessage is what the status allows.
	maxMessage = 512
	// unusedMemory is how long after its time an entry counts for the next wait.
	unusedMemory = 24 * time.Hour
)

// NewlyUnused reports whether a node has had room for the pod for too long, which the pod does not say yet.
func NewlyUnused(pod *corev1.Pod, now time.Time) bool {
	c := condition(pod, v1alpha1.ConditionScaleUp)
	return c != nil && c.Reason == v1alpha1.ReasonFitsNode && now.Sub(c.LastProbeTime.Time) >= unusedAfter
}

// UnusedAgain is the entry of a pod's workload after one more node was not used; before is nil the first time.
func UnusedAgain(before *v1alpha1.UnusedBy, pod *corev1.Pod, now time.Time) v1alpha1.UnusedBy {
	workload := WorkloadOf(pod)
	entry := v1alpha1.UnusedBy{
		Namespace: workload.Namespace, Workload: workload.Name, Asks: workload.Asks,
		Nodes: 1, Since: metav1.NewTime(now.Truncate(time.Second)), Message: excerpt.Of(schedulerSays(pod), maxMessage),
	}
	wait := unusedHold
	if before != nil {
		entry.Nodes = max(min(before.Nodes, 1000), 0) + 1
		wait = unusedHold << min(entry.Nodes-1, 16)
	}
	entry.Until = metav1.NewTime(entry.Since.Add(min(wait, unusedMost)))
	return entry
}

// Remembered reports whether an entry still counts. One that ends later than any can was made by a clock
// that ran ahead.
func Remembered(entry *v1alpha1.UnusedBy, now time.Time) bool {
	return now.Before(entry.Until.Add(unusedMemory)) && entry.Until.Sub(now) <= unusedMost
}
