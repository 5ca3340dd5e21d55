package view

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
)

// silentMost is how long a Cluster Autoscaler without a report is expected to come back.
const silentMost = 24 * time.Hour

// Report is what Cluster Autoscaler reports of a group now, or has last reported; nil: nothing within a day, or status
// is nil and there was no report. It deletes its status when it exits (ExitCleanUp in core/static_autoscaler.go), and
// its first one has no groups. The nodes that it has requested come nevertheless.
func Report(group *v1alpha1.GPUNodeGroup, status *autoscaler.Status, now time.Time) *v1alpha1.AutoscalerReport {
	last := group.Status.Autoscaler
	if status == nil {
		return last
	}
	if reported, known := status.Of(group, now); known {
		return &v1alpha1.AutoscalerReport{Target: ptr.To(int32(reported.Target))}
	}
	lives := status.Counts(now)
	if last == nil || lives && last.Target == nil || last.SilentSince != nil && now.Sub(last.SilentSince.Time) > silentMost {
		if lives {
			return &v1alpha1.AutoscalerReport{}
		}
		return nil
	}
	silent := last.DeepCopy()
	if silent.SilentSince == nil {
		silent.SilentSince = &metav1.Time{Time: now.Truncate(time.Second)}
	}
	return silent
}

// Target is the desired size of the group, as far as EKS, EC2 Auto Scaling or Cluster Autoscaler reports it. The last
// report of a silent Cluster Autoscaler counts until the group's provision timeout.
func (g *Group) Target(now time.Time) int {
	switch report := g.Autoscaler; {
	case g.ProviderSize != nil:
		return int(*g.ProviderSize)
	case report == nil || report.Target == nil:
		return 0
	case report.SilentSince != nil && !now.Before(g.TargetEnds()):
		return 0
	default:
		return int(*report.Target)
	}
}

// TargetEnds is when the last target of a silent Cluster Autoscaler ceases to count; zero: it is not silent.
func (g *Group) TargetEnds() time.Time {
	if g.Autoscaler == nil || g.Autoscaler.SilentSince == nil {
		return time.Time{}
	}
	return g.Autoscaler.SilentSince.Add(g.Object.ProvisionTimeout())
}
