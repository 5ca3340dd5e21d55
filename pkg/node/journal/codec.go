package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// A record is written in the oldest schema version whose builds do no harm with it,
// and refused by older ones. A field that those may ignore needs no new version.
const (
	firstSchema = 1
	// sharingSchema is of claims that share a GPU or change how it is shared: who
	// does not know of that takes the others' shares for conflicts, and leaves
	// daemons and modes behind.
	sharingSchema = 2
	// shapeSchema is of shapes and steps that come after those of earlier builds, which
	// would take the device for a whole GPU with nothing to undo. Of all others, such
	// builds conclude the shape from the other fields, which they find as they wrote
	// them, so that they can follow this one.
	shapeSchema  = 3
	newestSchema = shapeSchema
)

var (
	earlierShapes   = []string{gpu.BaseWhole, gpu.BasePartition, gpu.BaseStatic}
	earlierSharings = []string{"", gpu.TimeSlicing{}.Name(), gpu.MPS{}.Name()}
	earlierSteps    = []Step{DisableMIG, MakePartition, SetTimeSlice, SetComputeMode, RunDaemon}
)

// maxFileSize bounds what is read into memory. A claim has at most 32 results;
// a record of that many devices takes some 10 KiB.
const maxFileSize = 64 << 10

const extension = ".json"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns the record as its file holds it, for a copy elsewhere.
func Encode(r Record) ([]byte, error) { return encode(r) }

// Decode reads a copy of a claim's record. The error says what is wrong with it.
func Decode(uid string, data []byte) (Record, error) {
	record, bad := decode(uid+extension, data)
	if bad != nil {
		return Record{}, fmt.Errorf("the copy of the record of claim %s %s", uid, bad.detail)
	}
	return record, nil
}

// encode returns the content of the record's file. The checksum is over the
// bytes of the record as they stand in the file, never over a re-marshalled
// value, so a reader with other fields than the writer's still gets the same sum.
func encode(r Record) ([]byte, error) {
	if err := validate(r); err != nil {
		return nil, err
	}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	data := fmt.Appendf(nil, `{"schemaVersion":%d,"crc32c":%q,"record":%s}`+"\n", schemaOf(r), checksum(body), body)
	if len(data) > maxFileSize {
		return nil, fmt.Errorf("the record takes %d bytes and at most %d are allowed", len(data), maxFileSize)
	}
	return data, nil
}

// schemaOf is the version in which a record is written.
func schemaOf(r Record) int {
	schema := firstSchema
	for _, d := range r.Devices {
		schema = max(schema, d.schema())
	}
	return schema
}

func (d Device) schema() int {
	later := func(s Step) bool { return !slices.Contains(earlierSteps, s) }
	switch {
	case !slices.Contains(earlierShapes, d.Shape), !slices.Contains(earlierSharings, d.Sharing), slices.ContainsFunc(d.Steps, later):
		return shapeSchema
	case d.Shares != 0 || d.Interval != "" || d.Served():
		return sharingSchema
	}
	return firstSchema
}

// decode reads what encode wrote. The name is that of the file, without its
// directory. The second result is nil or says what is wrong.
func decode(name string, data []byte) (Record, *fault) {
	uid := strings.TrimSuffix(name, extension)
	if !validUID(uid) || uid == name {
		return Record{}, faultf("has the name of no claim: a claim's UID and %q were expected", extension)
	}
	if len(data) == 0 {
		return Record{}, faultf("is empty")
	}
	// The version first: a newer one may have another envelope, and other limits.
	if version := schemaIn(data); version > newestSchema {
		newer := faultf("was written by a newer version of the plugin (schema version %d, this one knows up to %d)", version, newestSchema)
		newer.newer = true
		return Record{}, newer
	}
	if len(data) > maxFileSize {
		return Record{}, faultf("is larger than %d bytes", maxFileSize)
	}
	body, bad := openEnvelope(data)
	if bad != nil {
		return Record{}, bad
	}
	var record Record
	if err := json.Unmarshal(body, &record); err != nil {
		return Record{}, faultf("has an intact checksum and a content that cannot be read: %w", err)
	}
	for i := range record.Devices {
		record.Devices[i].complete()
	}
	if err := validate(record); err != nil {
		return Record{}, faultf("has an intact checksum and an impossible content: %w", err)
	}
	if record.ClaimUID != uid {
		return Record{}, faultf("holds the record of claim %q", record.ClaimUID)
	}
	return record, nil
}

// openEnvelope returns the bytes of the record after checking all around them.
func openEnvelope(data []byte) (json.RawMessage, *fault) {
	var envelope map[string]json.RawMessage
	decoder := json.NewDecoder(bytes.NewReader(data))
	switch err := decoder.Decode(&envelope); {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return nil, faultf("ends after %d bytes in the middle of its content", len(data))
	case err != nil:
		return nil, faultf("is not a record: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, faultf("has something behind the record")
	}
	var version int
	if err := json.Unmarshal(envelope["schemaVersion"], &version); err != nil || version < 1 {
		return nil, faultf("has no schema version")
	}
	var sum string
	if err := json.Unmarshal(envelope["crc32c"], &sum); err != nil || len(envelope["record"]) == 0 || len(envelope) != 3 {
		return nil, faultf(`is not a record: exactly "schemaVersion", "crc32c" and "record" were expected`)
	}
	if actual := checksum(envelope["record"]); sum != actual {
		return nil, faultf("has been damaged: its checksum is %s where %q is written", actual, sum)
	}
	return envelope["record"], nil
}

func validate(r Record) error {
	if !validUID(r.ClaimUID) {
		return fmt.Errorf("%q is not the UID of a claim", r.ClaimUID)
	}
	if r.State != Intent && r.State != Prepared {
		return fmt.Errorf("the state %q is neither %q nor %q", r.State, Intent, Prepared)
	}
	for _, d := range r.Devices {
		if d.Shape == "" {
			return fmt.Errorf("device %q has no shape", d.Device)
		}
	}
	return nil
}

// validUID accepts what Kubernetes or a test may use as a UID and nothing that
// means something in a path.
func validUID(uid string) bool {
	if uid == "" || len(uid) > 64 || uid[0] == '-' {
		return false
	}
	for _, c := range []byte(uid) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-':
		default:
			return false
		}
	}
	return true
}
