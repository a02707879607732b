package threads

import (
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// cgroupQuota is the CPU quota of the control groups of this process in processors, rounded up; 0:
// no limit. Control groups are nested, and the smallest quota on the path to the root applies. See
// cgroups(7).
func cgroupQuota() int { return quotaIn("") }

// quotaIn is cgroupQuota for a file system below root; tests pass a folder.
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

// cgroupMount is a mounted cgroup hierarchy that can limit CPU time.
type cgroupMount struct {
	root    string // group at the root of the mount
	point   string // mount point
	unified bool   // cgroup version 2
}

// parseMount reads a line of mountinfo: id, parent, device, root, mount point, options..., "-",
// type, source, options of the file system.
func parseMount(line string) (m cgroupMount, ok bool) {
	before, after, found := strings.Cut(line, " - ")
	fields, kind := strings.Fields(before), strings.Fields(after)
	if !found || len(fields) < 5 || len(kind) < 1 {
		return m, false
	}
	m = cgroupMount{root: unescape.Replace(fields[3]), point: unescape.Replace(fields[4]), unified: kind[0] == "cgroup2"}
	return m, m.unified || kind[0] == "cgroup" && len(kind) > 2 && hasItem(kind[2], "cpu")
}

// unescape decodes the octal escapes of mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// hasItem reports whether a comma-separated list contains an item.
func hasItem(list, item string) bool {
	for _, each := range strings.Split(list, ",") {
		if each == item {
			return true
		}
	}
	return false
}

// folder is the folder of the group in a line of /proc/self/cgroup (number:controllers:path), if
// the group belongs to this hierarchy. A group outside the mounted part, as in a container, maps to
// the mount point.
func (m *cgroupMount) folder(line string) (string, bool) {
	fields := strings.SplitN(line, ":", 3)
	if len(fields) < 3 || m.unified != (fields[0] == "0" && fields[1] == "") || !m.unified && !hasItem(fields[1], "cpu") {
		return "", false
	}
	inside, found := strings.CutPrefix(fields[2], strings.TrimSuffix(m.root, "/"))
	if !found || inside != "" && inside[0] != '/' || strings.HasPrefix(inside, "/..") {
		inside = ""
	}
	return path.Join(m.point, inside), true
}

// quota is the CPU quota of the group in a folder, in processors; +Inf if there is no limit.
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

// contentOf is the trimmed content of a file; "" if it cannot be read.
func contentOf(file string) string {
	bytes, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(bytes))
}

// linesOf are the lines of a file.
func linesOf(file string) []string { return strings.Split(contentOf(file), "\n") }
