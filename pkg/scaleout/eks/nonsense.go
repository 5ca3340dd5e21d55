package eks

import (
	"fmt"
	"net/http"
	"regexp"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eks"
	"github.com/aws/aws-sdk-go-v2/service/eks/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// What EKS can say of a node group, and a GPUNodeGroup can hold.
const (
	maxNodes  = 100_000
	maxLabels = 64
	maxTaints = 32
	// maxAnswer is how many bytes of an answer of EKS are read, and maxScalingAnswer of one of EC2
	// Auto Scaling, which has some 600 for every instance of a group.
	maxAnswer        = 1 << 20
	maxScalingAnswer = 64 << 20
)

// nodegroupName is what EKS accepts as a name (CreateNodegroup, nodegroupName).
var nodegroupName = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]{0,62}$`)

func checkName(name string) error {
	if !nodegroupName.MatchString(name) {
		return fmt.Errorf("EKS lists a node group %.80q, which is no name of one: it is left out", name)
	}
	return nil
}

// checkSizes refuses sizes that no group has: nothing is to be counted on them.
func checkSizes(n view.Nodegroup) error {
	if n.Min < 0 || n.Max < n.Min || n.Max > maxNodes || n.Desired < 0 || n.Desired > maxNodes {
		return fmt.Errorf("AWS says of the group that it has from %d to %d nodes, and is to have %d, which cannot be: see the group at AWS; it is asked again", n.Min, n.Max, n.Desired)
	}
	return nil
}

// check refuses what no node group of EKS has. It bounds what becomes of an answer, and says which part of
// it is wrong before the API server does.
func check(g *types.Nodegroup) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("EKS says of the node group that %s: see `aws eks describe-nodegroup`, or declare the group by hand", fmt.Sprintf(format, args...))
	}
	if err := checkSizes(facts(g)); err != nil {
		return err
	}
	if len(g.Labels) > maxLabels || len(g.Taints) > maxTaints {
		return refuse("it has %d labels and %d taints, of which %d and %d are the most", len(g.Labels), len(g.Taints), maxLabels, maxTaints)
	}
	for key, value := range g.Labels {
		if len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			return refuse("it has the label %.80q with the value %.80q, which no node can have", key, value)
		}
	}
	for _, t := range g.Taints {
		key, value := aws.ToString(t.Key), aws.ToString(t.Value)
		if len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 || effects[t.Effect] == "" {
			return refuse("it has the taint %.80q with the value %.80q and the effect %.40q, which no node can have", key, value, t.Effect)
		}
	}
	return nil
}

// bounded is a client of HTTP that reads no more of an answer than so many bytes. Reading on gives
// an http.MaxBytesError.
type bounded struct {
	eks.HTTPClient
	bytes int64
}

// Do implements eks.HTTPClient.
func (b bounded) Do(request *http.Request) (*http.Response, error) {
	response, err := b.HTTPClient.Do(request)
	if err != nil {
		return response, err
	}
	response.Body = http.MaxBytesReader(nil, response.Body, b.bytes)
	return response, nil
}
