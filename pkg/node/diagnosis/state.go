package diagnosis

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/mps"
)

type claim struct {
	Claim   string   `json:"claim"`
	Devices []string `json:"devices"`
	// OtherBoot: it was recorded before the last boot.
	OtherBoot bool `json:"otherBoot,omitempty"`
}

// Recorded lists the claims in the journal in dir. bootID is the running kernel's.
func Recorded(dir, bootID string) Section {
	return Section{"claims", func(context.Context) (any, error) {
		records, damaged, err := journal.Read(dir)
		if err != nil {
			return nil, err
		}
		found := struct {
			Recorded []claim  `json:"recorded"`
			Damaged  []string `json:"damaged,omitempty"`
		}{Recorded: []claim{}}
		for _, record := range records {
			c := claim{Claim: fmt.Sprintf("%s/%s (%s): %s", record.Namespace, record.Name, record.ClaimUID, record.State), OtherBoot: record.BootID != bootID, Devices: []string{}}
			for _, d := range record.Devices {
				c.Devices = append(c.Devices, fmt.Sprintf("%s is %s of %s for request %s, shape %q, steps %v", d.Device, d.DeviceUUID(), d.UUID, d.Request, d.Form.Base, d.Steps))
			}
			found.Recorded = append(found.Recorded, c)
		}
		for _, file := range damaged {
			found.Damaged = append(found.Damaged, file.Error())
		}
		return found, nil
	}}
}

// CDI lists the specifications of all vendors in a directory, with sizes and times.
func CDI(dir string) Section {
	return Section{"cdi", func(context.Context) (any, error) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		files := []string{}
		for _, entry := range entries {
			if info, err := entry.Info(); err == nil { // else it is gone
				files = append(files, fmt.Sprintf("%s, %d bytes, %s", info.Name(), info.Size(), info.ModTime().UTC().Format(time.RFC3339)))
			}
		}
		return files, nil
	}}
}

// maxHealth bounds the file in bytes, as the plugin does.
const maxHealth = 1 << 20

// Health shows the plugin's file about the GPUs' health.
func Health(path string) Section {
	return Section{"health", func(context.Context) (any, error) {
		file, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return "no fault so far", nil
		}
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // it was only read
		var kept map[string]any
		err = json.NewDecoder(io.LimitReader(file, maxHealth)).Decode(&kept)
		delete(kept, "seen") // the section nvml has the GPUs as they are
		return kept, err
	}}
}

// MPS shows the status of the control daemons. root is empty on a node without a supervisor.
func MPS(root string) Section {
	return Section{"mps", func(context.Context) (any, error) {
		if root == "" {
			return "the node has no MPS supervisor", nil
		}
		statuses, err := mps.NewDirectory(root).Statuses()
		return append([]mps.Status{}, statuses...), err
	}}
}

// Metrics shows the running plugin's metrics without devices and buckets, from a port of this host.
// The port is negative if the plugin serves none.
func Metrics(port int) Section {
	return Section{"metrics", func(ctx context.Context) (any, error) {
		if port < 0 {
			return "the plugin serves none", nil
		}
		url := "http://" + net.JoinHostPort("localhost", strconv.Itoa(port)) + "/metrics"
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		defer func() { _ = response.Body.Close() }() // it was only read
		if response.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("%s answers %s", url, response.Status)
		}
		found := []string{}
		lines := bufio.NewScanner(response.Body)
		for lines.Scan() {
			name, _, _ := strings.Cut(lines.Text(), "{")
			if own := strings.HasPrefix(name, "mica_") || strings.HasPrefix(name, "process_"); own && !strings.HasPrefix(name, "mica_device_") && !strings.HasSuffix(name, "_bucket") {
				found = append(found, lines.Text())
			}
		}
		return found, cmp.Or(lines.Err(), ctx.Err())
	}}
}
