/* A button on every block of code. Prompts and what a command prints are not copied. */
addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const text = block.querySelector("pre").innerText;
      const prompt = /^(\$|>>>|\.\.\.) /;
      const commands = text.split("\n").filter((line) => prompt.test(line)).map((line) => line.replace(prompt, ""));
      await navigator.clipboard.writeText(commands.length ? commands.join("\n") : text);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.append(button);
  }
});
