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

// ErrThrottled is the error of calls during the pause after throttling.
var ErrThrottled = errors.New("throttled")

// api is an AWS service: its prefix in IAM, its name, and the field of a GPUNodeGroup that names its objects.
type api struct{ prefix, name, field string }

var (
	apiEKS     = api{"eks", "EKS", "spec.provider.eks"}
	apiScaling = api{"autoscaling", "EC2 Auto Scaling", "spec.provider.autoScalingGroup"}
)

// call calls AWS unless all calls pause.
func call[Out any](c *Client, of api, action string, group groupID, do func() (Out, error)) (out Out, err error) {
	if until, paused := c.paused(); paused {
		return out, fmt.Errorf("AWS throttles calls of this account (%w); the controller pauses until %s", ErrThrottled, timeOfDay(until))
	}
	out, err = do()
	return out, c.judge(of, action, group, err)
}

// judge makes errors readable, and begins a pause after throttling.
func (c *Client) judge(of api, action string, group groupID, err error) error {
	if err == nil {
		c.unpause()
		return nil
	}
	err = lasting{err}
	what := fmt.Sprintf("%s of %s", action, group)
	if throttles(err) {
		return fmt.Errorf("%s: %s throttles calls of this account (%w); the controller pauses until %s", what, of.name, ErrThrottled, timeOfDay(c.throttled()))
	}
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return fmt.Errorf("%s: the answer has more than %d bytes, too many for one of %s: see what answers at its endpoint: %w", what, large.Limit, of.name, err)
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
		return fmt.Errorf("%s: AWS does not accept the controller's credentials: check IRSA or Pod Identity of its service account, and the node's clock: %w", what, err)
	case "ResourceNotFoundException":
		return fmt.Errorf("%s: %s does not know it in this region: correct %s of the GPUNodeGroup, or the controller's region: %w", what, of.name, of.field, err)
	case "InvalidParameterException", "InvalidRequestException", "ValidationError":
		return fmt.Errorf("%s: %s refuses the request: %w", what, of.name, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// lasting is an error with the same text at each failure, so that a condition with it is not written at each call.
type lasting struct{ error }

// passing are the ID of a request and its source port.
var passing = regexp.MustCompile(`RequestID: [^,]*, |\S+:\d+->`)

// Error implements error.
func (l lasting) Error() string { return passing.ReplaceAllString(l.error.Error(), "") }

// Unwrap returns the original error.
func (l lasting) Unwrap() error { return l.error }

func timeOfDay(t time.Time) string { return t.UTC().Format(time.TimeOnly) + " UTC" }

// refuses reports whether AWS began nothing, and will refuse again. It is false for calls without an answer.
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

// throttled begins a pause, twice as long as the last, and returns its end. Concurrent calls begin one pause.
func (c *Client) throttled() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.options.Now(); !now.Before(c.until) {
		c.pause = min(max(2*c.pause, minPause), maxPause)
		c.until = now.Add(c.pause)
	}
	return c.until
}

// unpause forgets past pauses after a successful call.
func (c *Client) unpause() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.options.Now().Before(c.until) {
		c.pause = 0
	}
}

func (c *Client) paused() (until time.Time, paused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.until, c.options.Now().Before(c.until)
}
