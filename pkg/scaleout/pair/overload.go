package pair

import (
	"errors"
	"fmt"
	"net"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// kindOf is equal for actions that send the same request about different objects.
func kindOf(action Action) string { return fmt.Sprintf("%T", action) }

// isOverload reports whether an error is about the server, not about the object of the request.
func isOverload(err error) bool {
	var network net.Error
	return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || errors.As(err, &network) && network.Timeout()
}
