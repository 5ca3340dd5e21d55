// Package aws serves the calls of EC2 Auto Scaling, EC2 and EKS that Cluster Autoscaler's AWS provider makes
// (kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws), for the node groups of test/fleet/cloud: each is a
// managed node group of EKS with an Auto Scaling group. It keeps no state.
package aws

import (
	"context"
	"net/http"
	"time"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/test/ekssim"
	"github.com/mica-gpu/mica/test/fleet/cloud"
)

// Cluster is the EKS cluster of all node groups.
const Cluster = "fleet"

// Cloud has the node groups.
type Cloud interface {
	States() []cloud.State
	SetDesired(group string, desired int) error
	Terminate(ctx context.Context, instance string) error
}

// Handler serves the APIs at /aws/autoscaling, /aws/ec2 and /aws/eks.
func Handler(machines Cloud, now func() time.Time) http.Handler {
	mux := http.NewServeMux()
	types := types{machines}
	mux.Handle("POST /aws/autoscaling/", http.StripPrefix("/aws/autoscaling", current(machines, now)))
	mux.Handle("GET /aws/eks/", http.StripPrefix("/aws/eks", current(machines, now)))
	mux.Handle("POST /aws/ec2/", ekssim.Query("ec2", "2016-11-15", ec2Error, map[string]ekssim.Action{
		"DescribeInstanceTypes":          types.describe,
		"DescribeLaunchTemplateVersions": types.describeLaunchTemplate,
	}))
	// The SDK adds a slash to some endpoints only.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/aws/autoscaling" || r.URL.Path == "/aws/ec2" {
			r.URL.Path += "/"
		}
		mux.ServeHTTP(w, r)
	})
}

// current is test/ekssim with the groups as they are at each call.
func current(machines Cloud, now func() time.Time) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		server := ekssim.New(ekssim.Options{Cluster: Cluster, Now: now, Terminate: machines.Terminate, Resized: func(group string, _, to int) {
			if err := machines.SetDesired(group, to); err != nil {
				klog.FromContext(r.Context()).Error(err, "Cannot set the size of a node group", "group", group)
			}
		}})
		for _, state := range machines.States() {
			server.Add(nodegroup(state))
		}
		server.ServeHTTP(w, r)
	})
}

// nodegroup is EKS's view of a group, with the tags of its Auto Scaling group.
func nodegroup(state cloud.State) ekssim.Group {
	group := ekssim.Group{
		Name: state.Name, Min: state.Min, Max: state.Max, Desired: state.Desired,
		CapacityType: state.Capacity(), Labels: state.Labels, InstanceTypes: []string{state.InstanceType},
		AMIType: "CUSTOM", LaunchTemplate: launchTemplateOf(state.Name), ScalingGroup: state.Scaling(), Zones: []string{cloud.Zone},
		Instances: map[string]string{}, FailedLaunches: state.Failed,
		Tags: map[string]string{
			"eks:cluster-name": Cluster, "eks:nodegroup-name": state.Name,
			"k8s.io/cluster-autoscaler/enabled": "true", "k8s.io/cluster-autoscaler/" + Cluster: "owned", "kubernetes.io/cluster/" + Cluster: "owned",
		},
	}
	if state.Failure != nil {
		group.NoCapacity = state.Failure.Message
	}
	if unneeded := state.ScaleDownUnneeded.Duration; unneeded > 0 {
		group.Tags["k8s.io/cluster-autoscaler/node-template/autoscaling-options/scaledownunneededtime"] = unneeded.String()
	}
	for _, machine := range state.Instances {
		group.Instances[machine.ID] = "InService"
		if machine.Node == "" {
			group.Instances[machine.ID] = "Pending"
		}
	}
	for _, taint := range state.Taints {
		group.Taints = append(group.Taints, ekssim.Taint{Key: taint.Key, Value: taint.Value, Effect: effects[string(taint.Effect)]})
	}
	return group
}

// effects are EKS's names of them.
var effects = map[string]string{"NoSchedule": "NO_SCHEDULE", "NoExecute": "NO_EXECUTE", "PreferNoSchedule": "PREFER_NO_SCHEDULE"}
