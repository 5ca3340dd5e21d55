package eks

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// ErrThrottled is what errors are while EKS wants to be left alone.
var ErrThrottled = errors.New("throttled")

// api is a service of AWS, as IAM calls it and as people do, and the field of a GPUNodeGroup that
// names what it knows.
type api struct{ prefix, name, field string }

var (
	apiEKS     = api{"eks", "EKS", "spec.provider.eks"}
	apiScaling = api{"autoscaling", "EC2 Auto Scaling", "spec.provider.autoScalingGroup"}
)

// judge makes a sentence of what a call has come to, and lets all calls pause after
// throttling.
func (c *Client) judge(of api, action string, group groupID, err error) error {
	if err == nil {
		c.unpause()
		return nil
	}
	err = lasting{err}
	what := fmt.Sprintf("%s of %s", action, group)
	if throttles(err) {
		return fmt.Errorf("%s: %s throttles calls of this account (%w); it is left alone until %s", what, of.name, ErrThrottled, timeOfDay(c.throttled()))
	}
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return fmt.Errorf("%s: the answer has more than %d bytes, which is more than %s has to say, and is not read on: see what answers at its endpoint: %w", what, large.Limit, of.name, err)
	}
	var answer smithy.APIError
	if !errors.As(err, &answer) {
		return fmt.Errorf("%s: %s could not be asked: %w; see whether the controller reaches the endpoint and gets credentials by IRSA or Pod Identity", what, of.name, err)
	}
	switch answer.ErrorCode() {
	case "AccessDeniedException", "AccessDenied", "UnauthorizedOperation":
		return fmt.Errorf("%s: AWS denies %s:%s to the controller: allow it in the IAM policy of the role that its service account has by IRSA or Pod Identity: %w", what, of.prefix, action, err)
	case "ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException", "MissingAuthenticationTokenException",
		"ExpiredToken", "InvalidClientTokenId", "SignatureDoesNotMatch", "MissingAuthenticationToken":
		return fmt.Errorf("%s: AWS does not accept the controller's credentials: see to IRSA or Pod Identity of its service account, and to the node's clock: %w", what, err)
	case "ResourceNotFoundException":
		return fmt.Errorf("%s: %s does not know it in this region: correct %s of the GPUNodeGroup, or the controller's region: %w", what, of.name, of.field, err)
	case "InvalidParameterException", "InvalidRequestException", "ValidationError":
		return fmt.Errorf("%s: %s refuses the request: %w", what, of.name, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// lasting is an error whose text is the same for the same failure: it becomes a condition, and
// one that has the ID of its request would be written anew with every call.
type lasting struct{ error }

// passing are the ID of a request, and the port from which it was sent.
var passing = regexp.MustCompile(`RequestID: [^,]*, |\S+:\d+->`)

// Error implements error.
func (l lasting) Error() string { return passing.ReplaceAllString(l.error.Error(), "") }

// Unwrap gives the error as it was.
func (l lasting) Unwrap() error { return l.error }

func timeOfDay(t time.Time) string { return t.UTC().Format(time.TimeOnly) + " UTC" }

// refuses tells that EKS has not begun what it was asked for, and will not the next time.
// Of a call that nobody has answered, that is not known.
func refuses(err error) bool {
	var response *smithyhttp.ResponseError
	if throttles(err) || !errors.As(err, &response) {
		return false
	}
	status := response.HTTPStatusCode()
	return status >= 400 && status < 500 && status != http.StatusRequestTimeout
}

func throttles(err error) bool {
	var api smithy.APIError
	if errors.As(err, &api) {
		if _, found := retry.DefaultThrottleErrorCodes[api.ErrorCode()]; found {
			return true
		}
	}
	var response *smithyhttp.ResponseError
	return errors.As(err, &response) && response.HTTPStatusCode() == http.StatusTooManyRequests
}

// throttled begins a pause, twice as long as the one before, and gives its end. Calls that
// were made at once are throttled at once, which is one pause.
func (c *Client) throttled() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.pausing() {
		c.pause = min(max(2*c.pause, minPause), maxPause)
		c.until = c.options.Now().Add(c.pause)
	}
	return c.until
}

// unpause forgets pauses once a call goes through that was made after them.
func (c *Client) unpause() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.pausing() {
		c.pause = 0
	}
}

// pausing tells that nobody calls. More than the pause is left only where the clock was set
// back. The lock is held.
func (c *Client) pausing() bool {
	left := c.until.Sub(c.options.Now())
	return left > 0 && left <= c.pause
}

// paused is an error while nobody calls.
func (c *Client) paused() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.pausing() {
		return nil
	}
	return fmt.Errorf("AWS throttles calls of this account (%w); it is left alone until %s", ErrThrottled, timeOfDay(c.until))
}
