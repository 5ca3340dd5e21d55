package cloud

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// callTimeout is enough for a local server that lists all nodes.
const callTimeout = time.Minute

// Client calls the cloud of another process.
type Client struct {
	base string
	http http.Client
}

// NewClient returns a client of the server at base, such as http://127.0.0.1:8600.
func NewClient(base string) (*Client, error) {
	parsed, err := url.Parse(base)
	if err != nil || parsed.Scheme != "http" || parsed.Host == "" {
		return nil, fmt.Errorf("%q is no address of a cloud: give one such as http://127.0.0.1:8600", base)
	}
	return &Client{base: base, http: http.Client{Timeout: callTimeout}}, nil
}

// Groups are all groups with their states, by name.
func (c *Client) Groups(ctx context.Context) ([]State, error) {
	var states []State
	return states, c.call(ctx, http.MethodGet, "/groups", nil, &states)
}

// Put adds a group, or changes one for future machines.
func (c *Client) Put(ctx context.Context, group Group) error {
	return c.call(ctx, http.MethodPut, "/groups/"+url.PathEscape(group.Name), group, nil)
}

// Remove removes a group and terminates its machines.
func (c *Client) Remove(ctx context.Context, group string) error {
	return c.call(ctx, http.MethodDelete, "/groups/"+url.PathEscape(group), nil, nil)
}

// SetDesired sets the desired size.
func (c *Client) SetDesired(ctx context.Context, group string, desired int) error {
	return c.call(ctx, http.MethodPut, "/groups/"+url.PathEscape(group)+"/desired", size{desired}, nil)
}

// Terminate terminates a machine and lowers the group's size.
func (c *Client) Terminate(ctx context.Context, instance string) error {
	return c.call(ctx, http.MethodDelete, "/instances/"+url.PathEscape(instance), nil, nil)
}

func (c *Client) call(ctx context.Context, method, path string, body, into any) error {
	var content bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&content).Encode(body); err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, &content)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("call the cloud: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		var refused problem
		if err := json.NewDecoder(response.Body).Decode(&refused); err != nil || refused.Error == "" {
			return fmt.Errorf("%s %s: the cloud answered %s", method, path, response.Status)
		}
		return errors.New(refused.Error)
	}
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		return fmt.Errorf("%s %s: read the cloud's answer: %w", method, path, err)
	}
	return nil
}
