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

// Workload is an owner that replaces its pods by pods that are alike.
type Workload struct {
	Namespace string
	// Name has the kind, such as CronJob/train.
	Name string
	// Asks is equal for pods with equal conditions on nodes.
	Asks string
}

// WorkloadOf is the workload of a pod, by names in the pod alone: Jobs and ReplicaSets come and go with their pods.
func WorkloadOf(pod *corev1.Pod) Workload {
	return Workload{Namespace: pod.Namespace, Name: workloadName(pod), Asks: asks(&pod.Spec)}
}

// ofCronJob matches the name of a CronJob's Job, which ends in its time in minutes since 1970 (getJobName in
// pkg/controller/cronjob/utils.go of Kubernetes). It has had eight digits since 1989.
var ofCronJob = regexp.MustCompile(`^(.+)-[0-9]{8}$`)

// workloadName is the kind and the name, without the generated part of the pod's name. Each pod of a StatefulSet has a
// name of its own, because it has volumes of its own.
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

// asks is a hash of what is equal for pods of one template. Affinity to pods is not: the API server writes the values
// of matchLabelKeys into it.
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

// unusedWorkloads are those whose nodes were not used, by namespace: few namespaces have any.
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

// hold says why no node is requested for a pod: the scheduler did not use one that had room for an earlier pod of its
// workload. Empty: that did not happen, or another node is due. Earlier pods have a condition of their own.
func (u unusedWorkloads) hold(pod *corev1.Pod, now time.Time) string {
	if u[pod.Namespace] == nil {
		return ""
	}
	entry := u[pod.Namespace][WorkloadOf(pod)]
	if entry == nil || pod.CreationTimestamp.Before(&entry.Since) || !now.Before(entry.Until.Time) || entry.Until.Sub(now) > unusedMost {
		return ""
	}
	return excerpt.Of(fmt.Sprintf("a node had room for an earlier pod of %s for %s, and the scheduler did not put it there; it said: %s: fix that; another node is requested at %s",
		entry.Workload, unusedAfter, entry.Message, entry.Until.UTC().Format(time.RFC3339)), excerpt.MaxEvent)
}

const (
	// maxMessage is the limit in the status.
	maxMessage = 512
	// unusedMemory is how long an entry still counts for the next wait after its time.
	unusedMemory = 24 * time.Hour
)

// NewlyUnused reports whether a node has had room for the pod for too long, and the pod's condition does not say so
// yet.
func NewlyUnused(pod *corev1.Pod, now time.Time) bool {
	c := condition(pod, v1alpha1.ConditionScaleUp)
	return c != nil && c.Reason == v1alpha1.ReasonFitsNode && now.Sub(c.LastProbeTime.Time) >= unusedAfter
}

// UnusedAgain is the entry of a pod's workload after one more node was not used. before is nil the first time.
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

// Remembered reports whether an entry still counts. An entry that ends too late was written with a wrong clock.
func Remembered(entry *v1alpha1.UnusedBy, now time.Time) bool {
	return now.Before(entry.Until.Add(unusedMemory)) && entry.Until.Sub(now) <= unusedMost
}
