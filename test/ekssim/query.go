package ekssim

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"k8s.io/klog/v2"
)

const (
	// MaxBody bounds a request. maxMembers bounds a list in it: EC2 Auto Scaling takes 100 names.
	MaxBody    = 1 << 18
	maxMembers = 100
	// RequestID is that of every call.
	RequestID = "00000000-0000-4000-8000-000000000000"
)

// Action answers a call with a value to encode as XML. It reads its parameters, calls End, and only then has effects.
type Action func(context.Context, *Parameters) (any, error)

// Refusal is an error of the API.
type Refusal struct {
	Status        int
	Code, Message string
}

func (r *Refusal) Error() string { return r.Code + ": " + r.Message }

// Refused is a bad request.
func Refused(code, format string, args ...any) error {
	return &Refusal{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

// Query serves AWS's query protocol: a form in, XML out. EC2 has its own format of errors.
func Query(service, version string, errorBody func(*Refusal) any, actions map[string]Action) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := answer(w, r, service, version, actions)
		if err != nil {
			refusal := &Refusal{http.StatusInternalServerError, "InternalFailure", err.Error()}
			errors.As(err, &refusal)
			klog.FromContext(r.Context()).V(2).Info("Refused a call", "service", service, "err", err)
			writeXML(w, refusal.Status, errorBody(refusal))
			return
		}
		writeXML(w, http.StatusOK, body)
	})
}

func answer(w http.ResponseWriter, r *http.Request, service, version string, actions map[string]Action) (any, error) {
	if !signed(service, r) {
		return nil, &Refusal{http.StatusForbidden, "MissingAuthenticationToken", "the call is not signed for " + service}
	}
	r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
	if err := r.ParseForm(); err != nil {
		return nil, Refused("MalformedQueryString", "read the call: %v", err)
	}
	if len(r.URL.RawQuery) > 0 {
		return nil, Refused("MalformedQueryString", "the call has parameters in its URL")
	}
	p := &Parameters{left: r.PostForm}
	name, of := p.Need("Action"), p.Need("Version")
	act, known := actions[name]
	switch {
	case of != version:
		return nil, Refused("NoSuchVersion", "the simulator has %s %s, not %q", service, version, of)
	case !known:
		return nil, Refused("InvalidAction", "the simulator does not know %s:%s", service, name)
	}
	return act(r.Context(), p)
}

// Parameters are those of a call that the action has not read yet, with the errors of those that it has.
type Parameters struct {
	left   url.Values
	errors []error
}

// Text is empty if the call lacks the parameter.
func (p *Parameters) Text(name string) string {
	values := p.left[name]
	delete(p.left, name)
	if len(values) > 1 {
		p.errors = append(p.errors, fmt.Errorf("%s is there %d times", name, len(values)))
	}
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// Need is the text of a parameter that the call must have.
func (p *Parameters) Need(name string) string {
	value := p.Text(name)
	if value == "" {
		p.errors = append(p.errors, fmt.Errorf("%s is missing", name))
	}
	return value
}

func (p *Parameters) number(name string, missing int) int {
	text := p.Text(name)
	if text == "" {
		return missing
	}
	value, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		p.errors = append(p.errors, fmt.Errorf("%s is %q and no number", name, text))
	}
	return int(value)
}

func (p *Parameters) flag(name string) bool {
	text := p.Text(name)
	if text != "" && text != "true" && text != "false" {
		p.errors = append(p.errors, fmt.Errorf("%s is %q and neither true nor false", name, text))
	}
	return text == "true"
}

// List reads prefix.1, prefix.2 and so on.
func (p *Parameters) List(prefix string) []string {
	var values []string
	for p.left.Has(fmt.Sprintf("%s.%d", prefix, len(values)+1)) && len(values) < maxMembers {
		values = append(values, p.Text(fmt.Sprintf("%s.%d", prefix, len(values)+1)))
	}
	return values
}

// End is an error for wrong and for unknown parameters.
func (p *Parameters) End() error {
	for _, name := range slices.Sorted(maps.Keys(p.left)) {
		p.errors = append(p.errors, fmt.Errorf("the simulator does not know parameter %s", name))
	}
	if err := errors.Join(p.errors...); err != nil {
		return Refused("ValidationError", "%v", err)
	}
	return nil
}

func writeXML(w http.ResponseWriter, status int, body any) {
	content, err := xml.MarshalIndent(body, "", " ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(status)
	_, _ = w.Write(append(content, '\n')) // the client may have gone
}
