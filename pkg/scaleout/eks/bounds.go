package eks

import (
	"fmt"
	"net/http"
	"regexp"

	"github.com/aws/aws-sdk-go-v2/service/eks"

	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

const (
	maxNodes = 100_000
	// maxAnswer bounds EKS's answers in bytes, maxScalingAnswer those of EC2 Auto Scaling, which have some 600 per instance.
	maxAnswer        = 1 << 20
	maxScalingAnswer = 64 << 20
)

// nodegroupName is EKS's syntax of names (CreateNodegroup, nodegroupName).
var nodegroupName = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]{0,62}$`)

// checkSizes refuses impossible sizes.
func checkSizes(n view.Nodegroup) error {
	if n.Min < 0 || n.Max < n.Min || n.Max > maxNodes || n.Desired < 0 || n.Desired > maxNodes {
		return fmt.Errorf("AWS reports impossible sizes, from %d to %d nodes with %d desired: check the group at AWS", n.Min, n.Max, n.Desired)
	}
	return nil
}

// bounded limits the answers to an HTTP client. Reading on gives an http.MaxBytesError.
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
