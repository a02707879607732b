package threads

import (
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// cgroupQuota is the number of processors that the control groups of this process allow it at once, a fraction rounded up; 0: no limit.
// Groups are nested, and the smallest quota of a group and those that it lies in counts. See cgroups(7).
func cgroupQuota() int { return quotaIn("") }

// quotaIn is cgroupQuota of a tree of files that lies elsewhere.
func quotaIn(root string) int {
	limit := math.Inf(1)
	groups := linesOf(root + "/proc/self/cgroup")
	for _, line := range linesOf(root + "/proc/self/mountinfo") {
		mount, ok := parseMount(line)
		if !ok {
			continue
		}
		for _, group := range groups {
			if folder, ok := mount.folder(group); ok {
				for ; ; folder = path.Dir(folder) {
					limit = min(limit, mount.quota(root+folder))
					if len(folder) <= len(mount.point) {
						break
					}
				}
			}
		}
	}
	if math.IsInf(limit, 1) {
		return 0
	}
	return int(math.Ceil(limit))
}

// cgroupMount is a mounted hierarchy of control groups that can limit processor time.
type cgroupMount struct {
	root, point string // the group that is mounted, and where
	unified     bool   // version 2
}

// parseMount reads a line of mountinfo: id, parent, device, root, mount point, options..., "-", type, source, options of the file system.
func parseMount(line string) (m cgroupMount, ok bool) {
	before, after, found := strings.Cut(line, " - ")
	fields, kind := strings.Fields(before), strings.Fields(after)
	if !found || len(fields) < 5 || len(kind) < 1 {
		return m, false
	}
	m = cgroupMount{root: unescape.Replace(fields[3]), point: unescape.Replace(fields[4]), unified: kind[0] == "cgroup2"}
	return m, m.unified || kind[0] == "cgroup" && len(kind) > 2 && hasItem(kind[2], "cpu")
}

// unescape undoes what mountinfo writes for characters that separate its fields.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func hasItem(list, item string) bool {
	for _, each := range strings.Split(list, ",") {
		if each == item {
			return true
		}
	}
	return false
}

// folder is where the group of a line of /proc/self/cgroup (number:controllers:path) lies, if it is one of this hierarchy. A group outside
// the part that is mounted is that part as a whole, as in a container.
func (m *cgroupMount) folder(line string) (string, bool) {
	parts := strings.SplitN(line, ":", 3)
	if len(parts) < 3 || m.unified != (parts[0] == "0" && parts[1] == "") || !m.unified && !hasItem(parts[1], "cpu") {
		return "", false
	}
	inside, found := strings.CutPrefix(parts[2], strings.TrimSuffix(m.root, "/"))
	if !found || inside != "" && inside[0] != '/' || strings.HasPrefix(inside, "/..") {
		inside = ""
	}
	return path.Join(m.point, inside), true
}

// quota is the number of processors that the group in a folder may use; infinite where there is no limit.
func (m *cgroupMount) quota(folder string) float64 {
	var quota, period string
	if m.unified {
		quota, period, _ = strings.Cut(contentOf(folder+"/cpu.max"), " ")
	} else {
		quota, period = contentOf(folder+"/cpu.cfs_quota_us"), contentOf(folder+"/cpu.cfs_period_us")
	}
	q, wrong := strconv.ParseInt(quota, 10, 64) // "max" or -1: no limit
	p, wrongPeriod := strconv.ParseInt(period, 10, 64)
	if wrong != nil || wrongPeriod != nil || q <= 0 || p <= 0 {
		return math.Inf(1)
	}
	return float64(q) / float64(p)
}

func contentOf(file string) string {
	bytes, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(bytes))
}

func linesOf(file string) []string { return strings.Split(contentOf(file), "\n") }
