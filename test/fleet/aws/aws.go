// Package aws answers the calls of EC2 Auto Scaling, EC2 and EKS that the AWS provider of
// Cluster Autoscaler makes (kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws), for the
// node groups of test/fleet/cloud: each is a managed node group of EKS with a scaling group. It
// speaks the wire formats of AWS's SDK, keeps nothing, and refuses by name what it does not know.
package aws

import (
	"context"
	"net/http"
	"regexp"
	"time"

	"github.com/mica-gpu/mica/test/ekssim"
	"github.com/mica-gpu/mica/test/fleet/cloud"
)

// Cluster is the EKS cluster that all node groups are of.
const Cluster = "fleet"

// Cloud has the node groups.
type Cloud interface {
	States() []cloud.State
	SetDesired(group string, desired int) error
	Terminate(ctx context.Context, instance string) error
}

// Handler serves the APIs at /aws/autoscaling, /aws/ec2 and /aws/eks, of which an endpoint override
// names one each. The SDK adds a slash to some of them, by the way in which it was told.
func Handler(machines Cloud, now func() time.Time) http.Handler {
	mux := http.NewServeMux()
	scaling := scaling{machines, now}
	types := types{machines}
	for _, slash := range []string{"", "/{$}"} {
		mux.Handle("POST /aws/autoscaling"+slash, query("autoscaling", "2011-01-01", writeScalingError, map[string]action{
			"DescribeAutoScalingGroups":           scaling.describeGroups,
			"DescribeScalingActivities":           scaling.describeActivities,
			"SetDesiredCapacity":                  scaling.setDesired,
			"TerminateInstanceInAutoScalingGroup": scaling.terminate,
		}))
		mux.Handle("POST /aws/ec2"+slash, query("ec2", "2016-11-15", writeEC2Error, map[string]action{
			"DescribeInstanceTypes":          types.describe,
			"DescribeLaunchTemplateVersions": types.describeLaunchTemplate,
		}))
	}
	mux.Handle("GET /aws/eks/", http.StripPrefix("/aws/eks", eks(machines)))
	return mux
}

// eks is EKS as test/ekssim has it, with the groups as they are at each call. Nothing but
// descriptions is asked of it.
func eks(machines Cloud) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		server := ekssim.New(ekssim.Options{Cluster: Cluster})
		for _, state := range machines.States() {
			server.Add(nodegroup(state))
		}
		server.ServeHTTP(w, r)
	})
}

func nodegroup(state cloud.State) ekssim.Group {
	group := ekssim.Group{
		Name: state.Name, Min: state.Min, Max: state.Max, Desired: state.Desired,
		CapacityType: state.Capacity(), Labels: state.Labels,
		// As in a node group whose launch template names the type.
		AMIType: "CUSTOM",
	}
	for _, taint := range state.Taints {
		group.Taints = append(group.Taints, ekssim.Taint{Key: taint.Key, Value: taint.Value, Effect: effects[string(taint.Effect)]})
	}
	return group
}

// effects are EKS's names of them.
var effects = map[string]string{"NoSchedule": "NO_SCHEDULE", "NoExecute": "NO_EXECUTE", "PreferNoSchedule": "PREFER_NO_SCHEDULE"}

// signature is what AWS's client sends with each call: Version 4. It is not verified, for
// nobody's secret is known here.
var signature = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/[a-z0-9-]+/([a-z0-9]+)/aws4_request, SignedHeaders=[^,]*\bhost\b[^,]*, Signature=[0-9a-f]{64}$`)

// signed tells whether a call is for the service.
func signed(r *http.Request, service string) bool {
	match := signature.FindStringSubmatch(r.Header.Get("Authorization"))
	return match != nil && match[1] == service && r.Header.Get("X-Amz-Date") != ""
}
