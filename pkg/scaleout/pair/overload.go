package pair

import (
	"errors"
	"fmt"
	"net"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// overloads has the kinds of actions that are left for the next pass, because the API server, or AWS,
// did not keep up with one of the kind. The server answers each further request as late as the first,
// and each makes it worse.
type overloads map[string]bool

// kindOf is the same for actions that make the same request of different objects.
func kindOf(action Action) string { return fmt.Sprintf("%T", action) }

func (o overloads) note(action Action, err error) {
	if isOverload(err) {
		o[kindOf(action)] = true
	}
}

// isOverload reports whether the answer is about the server, and not about the object of the request.
func isOverload(err error) bool {
	var network net.Error
	return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || errors.As(err, &network) && network.Timeout()
}
