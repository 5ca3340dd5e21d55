package aws

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
	// maxBody bounds a call, and maxMembers a list in it: EC2 Auto Scaling takes 100 names.
	maxBody    = 1 << 18
	maxMembers = 100
	// requestID is that of every call: nobody has ever to be asked about one.
	requestID = "00000000-0000-4000-8000-000000000000"
)

// action answers a call with what is to be encoded as XML. It reads its parameters, asks whether
// these were all, and only then does something.
type action func(context.Context, *parameters) (any, error)

// refusal is an answer that is an error of the API.
type refusal struct {
	status        int
	code, message string
}

func (r *refusal) Error() string { return r.code + ": " + r.message }

func refused(code, format string, args ...any) error {
	return &refusal{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

// query serves a service that is called by forms and answers in XML: the query protocol of AWS,
// which EC2 speaks in a dialect of its own.
func query(service, version string, writeError func(http.ResponseWriter, *refusal), actions map[string]action) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := answer(w, r, service, version, actions)
		if err != nil {
			refusal := &refusal{http.StatusInternalServerError, "InternalFailure", err.Error()}
			errors.As(err, &refusal)
			klog.FromContext(r.Context()).Info("A call is refused", "service", service, "err", err)
			writeError(w, refusal)
			return
		}
		writeXML(w, http.StatusOK, body)
	})
}

func answer(w http.ResponseWriter, r *http.Request, service, version string, actions map[string]action) (any, error) {
	if !signed(r, service) {
		return nil, &refusal{http.StatusForbidden, "MissingAuthenticationToken", "the call is not signed for " + service}
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if err := r.ParseForm(); err != nil {
		return nil, refused("MalformedQueryString", "read the call: %v", err)
	}
	if len(r.URL.RawQuery) > 0 {
		return nil, refused("MalformedQueryString", "the call has parameters in its URL")
	}
	p := &parameters{left: r.PostForm}
	name, of := p.need("Action"), p.need("Version")
	act, known := actions[name]
	switch {
	case of != version:
		return nil, refused("NoSuchVersion", "the simulator has %s %s, not %q", service, version, of)
	case !known:
		return nil, refused("InvalidAction", "the simulator does not know %s:%s", service, name)
	}
	return act(r.Context(), p)
}

// parameters are those of a call that nobody has read yet, and what was wrong with others.
type parameters struct {
	left     url.Values
	problems []error
}

// text is empty where the call does not have the parameter.
func (p *parameters) text(name string) string {
	values := p.left[name]
	delete(p.left, name)
	if len(values) > 1 {
		p.problems = append(p.problems, fmt.Errorf("%s is there %d times", name, len(values)))
	}
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

func (p *parameters) need(name string) string {
	value := p.text(name)
	if value == "" {
		p.problems = append(p.problems, fmt.Errorf("%s is missing", name))
	}
	return value
}

// number is otherwise where the call does not have the parameter.
func (p *parameters) number(name string, otherwise int) int {
	text := p.text(name)
	if text == "" {
		return otherwise
	}
	value, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		p.problems = append(p.problems, fmt.Errorf("%s is %q and no number", name, text))
	}
	return int(value)
}

func (p *parameters) flag(name string) bool {
	text := p.text(name)
	if text != "" && text != "true" && text != "false" {
		p.problems = append(p.problems, fmt.Errorf("%s is %q and neither true nor false", name, text))
	}
	return text == "true"
}

// list reads prefix.1, prefix.2 and so on.
func (p *parameters) list(prefix string) []string {
	var values []string
	for p.left.Has(fmt.Sprintf("%s.%d", prefix, len(values)+1)) && len(values) < maxMembers {
		values = append(values, p.text(fmt.Sprintf("%s.%d", prefix, len(values)+1)))
	}
	return values
}

// end tells what was wrong, be it a parameter that nobody knows.
func (p *parameters) end() error {
	for _, name := range slices.Sorted(maps.Keys(p.left)) {
		p.problems = append(p.problems, fmt.Errorf("the simulator does not know parameter %s", name))
	}
	if err := errors.Join(p.problems...); err != nil {
		return refused("ValidationError", "%v", err)
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
	_, _ = w.Write(append(content, '\n')) // who asked has gone: there is nobody to tell
}
